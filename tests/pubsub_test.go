package tests_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	pubsub "github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/tests"
)

// TestPubSub runs Watermill's universal suite on a subscriber that gets every message twice and passes it on through
// the inbox. It says of itself that it delivers exactly once, so that the suite counts every copy as a mistake.
func TestPubSub(t *testing.T) {
	for _, c := range columns() {
		t.Run(c.features.Name, func(t *testing.T) {
			var duplicates atomic.Int64
			t.Run("Universal", func(t *testing.T) { testUniversal(t, c, &duplicates) })
			require.Positive(t, duplicates.Load(), "no message came twice")
		})
	}
}

func testUniversal(t *testing.T, c column, duplicates *atomic.Int64) {
	features := pubsub.Features{
		ExactlyOnceDelivery:   true,
		RequireSingleInstance: true,                    // of a gochannel
		ForceShort:            tests.Scale(10, 1) < 10, // sizes of thousands are for the long run
	}
	pubsub.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		// One connection where there is one writer: the pool makes the wait for it fair.
		o := tests.Options{PoolSize: 16}
		if !c.features.Server {
			o.PoolSize = 1
		}
		env := c.harness(t, o)
		in, err := inbox.New(env.Store, inbox.Config{Observer: func(_ context.Context, e inbox.Event) {
			if e.Outcome == inbox.OutcomeDuplicate {
				duplicates.Add(1)
			}
		}})
		require.NoError(t, err)
		broker := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100, Persistent: true}, nil)
		doubled, err := inboxtest.NewDuplicateSubscriber(broker, inboxtest.DuplicateSubscriberConfig{Concurrent: true})
		require.NoError(t, err)
		sub := &inboxSubscriber{sub: doubled, in: in, write: env.Write}
		t.Cleanup(func() {
			require.NoError(t, sub.Close())
			require.Equal(t, env.Rows(t), env.Total(t), "every message that is remembered has one effect")
		})
		return broker, sub
	}, nil)
}

// inboxSubscriber passes on what another subscriber delivers, once: the handler behind the inbox writes an effect and
// hands the message to the reader, whose ack or nack is the handler's result.
//
// The consumer is the topic: the suite publishes messages of the same ids to several.
type inboxSubscriber struct {
	sub   message.Subscriber
	in    *inbox.Inbox
	write func(ctx context.Context, name string) error
	wg    sync.WaitGroup
}

// offer is how long a reader may take to come for a message. The suite leaves subscriptions open that nobody reads any
// more; they must not keep their messages, and their transactions, for ever.
const offer = 100 * time.Millisecond

var (
	errNacked   = errors.New("the reader nacked")
	errNoReader = errors.New("nobody reads")
)

func (s *inboxSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	messages, err := s.sub.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	handle := s.in.As(topic)(func(msg *message.Message) ([]*message.Message, error) {
		if err := s.write(msg.Context(), topic+"/"+msg.UUID); err != nil {
			return nil, err
		}
		return nil, handOver(out, msg)
	})
	s.wg.Go(func() {
		defer close(out)
		var inHand sync.WaitGroup
		defer inHand.Wait()
		for msg := range messages {
			inHand.Go(func() {
				if _, err := handle(msg); err != nil {
					msg.Nack()
					return
				}
				msg.Ack()
			})
		}
	})
	return out, nil
}

// handOver gives the reader a message of its own, whose context ends when the reader is done with it.
func handOver(out chan<- *message.Message, msg *message.Message) error {
	ctx, cancel := context.WithCancel(msg.Context())
	defer cancel()
	mine := msg.Copy()
	mine.SetContext(ctx)
	select {
	case out <- mine:
	case <-time.After(offer):
		return errNoReader
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-mine.Acked():
		return nil
	case <-mine.Nacked():
		return errNacked
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *inboxSubscriber) Close() error {
	err := s.sub.Close()
	s.wg.Wait()
	return err
}
