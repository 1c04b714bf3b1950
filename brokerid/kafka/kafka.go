// Package kafka tells Kafka's messages apart by their place in the log, for producers that set no message id.
package kafka

import (
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// ByOffset takes topic, partition and offset as the id, and cluster as the source. The message must come from
// watermill-kafka's Subscriber through a router; where a part is missing the error is inbox.ErrNoMessageID.
//
// An offset names a record, not what the producer meant, and only as long as the topic lives:
//
//   - A topic that is deleted and made again counts from 0: its new records have the ids of old ones. They are refused
//     with inbox.ErrMismatch, or, where the content is equal too, skipped as duplicates. Give the new topic another
//     name, or another cluster name here.
//   - Two clusters count alike: each needs its own cluster name. A record that was copied to another cluster, by
//     MirrorMaker or after a disaster, has another offset there and is handled again.
//   - A producer that sends a message twice (a retry without enable.idempotence, an outbox relay that crashed) writes
//     two records: both are handled.
//
// A message id that the producer sets has none of these traps: prefer inbox.ByUUID or inbox.ByMetadata. With one
// cluster for all times the name may be empty.
func ByOffset(cluster string) inbox.Identity {
	return func(msg *message.Message) (string, string, error) {
		ctx := msg.Context()
		topic := message.SubscribeTopicFromCtx(ctx)
		if topic == "" {
			return "", "", missing("topic: run the handler in a router")
		}
		partition, ok := kafka.MessagePartitionFromCtx(ctx)
		if !ok {
			return "", "", missing("partition: it is not from watermill-kafka's Subscriber, or a decorator dropped its context")
		}
		offset, ok := kafka.MessagePartitionOffsetFromCtx(ctx)
		if !ok {
			return "", "", missing("offset: it is not from watermill-kafka's Subscriber, or a decorator dropped its context")
		}
		// Unambiguous for every topic, since the numbers hold no "/".
		id := topic + "/" + strconv.FormatInt(int64(partition), 10) + "/" + strconv.FormatInt(offset, 10)
		return cluster, id, nil
	}
}

func missing(what string) error {
	return fmt.Errorf("%w (the message carries no Kafka %s)", inbox.ErrNoMessageID, what)
}

// MessageTime gives the time of the Kafka record, for inbox.Config.MessageTime; zero where there is none.
//
// It is equal in every copy only for replays of one log: a record that the producer sent again, or that was copied to
// a topic with message.timestamp.type=LogAppendTime, has another time. Never use it as inbox.Config.KeyTime.
func MessageTime(msg *message.Message) time.Time {
	at, _ := kafka.MessageTimestampFromCtx(msg.Context())
	return at
}
