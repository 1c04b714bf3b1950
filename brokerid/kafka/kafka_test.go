package kafka_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/brokerid/kafka"
)

func TestByOffset(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cluster, topic string
		partition      int32
		offset         int64
		want           string
	}{
		{"", "orders", 0, 0, "orders/0/0"},
		{"eu-1", "orders.v2", 12, 3456789, "orders.v2/12/3456789"},
		{"eu-1", "orders", math.MaxInt32, math.MaxInt64, "orders/2147483647/9223372036854775807"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			t.Parallel()
			ctx := consumed(routed(t, tt.topic), tt.partition, tt.offset)
			source, id, err := kafka.ByOffset(tt.cluster)(message.NewMessageWithContext(ctx, "", nil))
			require.NoError(t, err)
			require.Equal(t, tt.cluster, source)
			require.Equal(t, tt.want, id)
		})
	}
}

// Topic, partition, offset and cluster each make another message.
func TestByOffsetKeepsMessagesApart(t *testing.T) {
	t.Parallel()
	orders, invoices := routed(t, "orders"), routed(t, "orders/1")
	seen := map[inbox.Key]bool{}
	for _, cluster := range []string{"", "eu-1", "eu-2"} {
		for _, ctx := range []context.Context{
			consumed(orders, 1, 23), consumed(orders, 12, 3), consumed(orders, 1, 2), consumed(orders, 2, 1),
			consumed(invoices, 2, 3), consumed(invoices, 1, 23),
		} {
			source, id, err := kafka.ByOffset(cluster)(message.NewMessageWithContext(ctx, "", nil))
			require.NoError(t, err)
			key := inbox.Key{Consumer: "c", Source: source, ID: id}
			require.False(t, seen[key], key)
			seen[key] = true
		}
	}
}

func TestByOffsetNeedsEveryPart(t *testing.T) {
	t.Parallel()
	inRouter := routed(t, "orders")
	for reason, ctx := range map[string]context.Context{
		"topic":     consumed(t.Context(), 1, 2),
		"partition": context.WithValue(inRouter, keyOf(wmkafka.MessagePartitionOffsetFromCtx), int64(2)),
		"offset":    context.WithValue(inRouter, keyOf(wmkafka.MessagePartitionFromCtx), int32(1)),
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			source, id, err := kafka.ByOffset("eu-1")(message.NewMessageWithContext(ctx, "a-uuid", nil))
			require.ErrorIs(t, err, inbox.ErrNoMessageID)
			require.ErrorContains(t, err, "no Kafka "+reason)
			require.True(t, inbox.IsPermanent(err))
			require.Empty(t, source+id)
		})
	}
}

func TestMessageTime(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1700000000123)
	ctx := context.WithValue(t.Context(), keyOf(wmkafka.MessageTimestampFromCtx), at)
	require.Equal(t, at, kafka.MessageTime(message.NewMessageWithContext(ctx, "", nil)))
	require.True(t, kafka.MessageTime(message.NewMessage("", nil)).IsZero())
}

// consumed adds what watermill-kafka's Subscriber puts into a message's context.
func consumed(ctx context.Context, partition int32, offset int64) context.Context {
	ctx = context.WithValue(ctx, keyOf(wmkafka.MessagePartitionFromCtx), partition)
	return context.WithValue(ctx, keyOf(wmkafka.MessagePartitionOffsetFromCtx), offset)
}

// keyOf finds out under which key a function looks into a context: watermill-kafka exports only the functions.
func keyOf[T any](get func(context.Context) (T, bool)) any {
	asked := &askedFor{}
	get(asked)
	return asked.key
}

type askedFor struct {
	context.Context
	key any
}

func (a *askedFor) Value(key any) any {
	a.key = key
	return nil
}

// routed gives the context that a router gives to the messages of a topic.
func routed(t *testing.T, topic string) context.Context {
	t.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	got := make(chan context.Context, 1)
	router.AddConsumerHandler("handler", topic, pubSub, func(msg *message.Message) error {
		got <- context.WithoutCancel(msg.Context())
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- router.Run(t.Context()) }()
	<-router.Running()
	require.NoError(t, pubSub.Publish(topic, message.NewMessage("1", nil)))
	ctx := <-got
	require.NoError(t, router.Close())
	require.NoError(t, <-done)
	require.NoError(t, pubSub.Close())
	return ctx
}
