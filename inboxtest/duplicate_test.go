package inboxtest_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

func duplicating(t *testing.T, sub message.Subscriber, config inboxtest.DuplicateSubscriberConfig) *inboxtest.DuplicateSubscriber {
	s, err := inboxtest.NewDuplicateSubscriber(sub, config)
	require.NoError(t, err)
	return s
}

// source is a subscriber under the test's control; each message's ack is its own.
type source struct {
	messages chan *message.Message
	closed   atomic.Int32
	err      error
}

func (s *source) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.messages, s.err
}

func (s *source) Close() error {
	if s.closed.Add(1) == 1 {
		close(s.messages)
	}
	return s.err
}

func subscribe(t *testing.T, s message.Subscriber) <-chan *message.Message {
	messages, err := s.Subscribe(t.Context(), "topic")
	require.NoError(t, err)
	return messages
}

func newMessage(ctx context.Context) *message.Message {
	msg := message.NewMessageWithContext(ctx, "uuid", []byte("payload"))
	msg.Metadata.Set("key", "value")
	return msg
}

type ctxKey struct{}

func TestDuplicateSequential(t *testing.T) {
	t.Parallel()
	in := &source{messages: make(chan *message.Message)}
	s := duplicating(t, in, inboxtest.DuplicateSubscriberConfig{Copies: 3})
	out := subscribe(t, s)
	original := newMessage(context.WithValue(t.Context(), ctxKey{}, "carried"))
	in.messages <- original
	for range 3 {
		c := <-out
		require.True(t, c.Equals(original))
		require.Equal(t, "carried", c.Context().Value(ctxKey{}))
		c.Payload[0], c.Metadata["key"] = 'X', "changed"
		select {
		case <-out:
			t.Fatal("the next copy is there before this one is acked")
		case <-original.Acked():
			t.Fatal("acked before all copies are")
		case <-time.After(5 * time.Millisecond):
		}
		require.NoError(t, c.Context().Err())
		require.True(t, c.Ack())
		<-c.Context().Done()
	}
	<-original.Acked()
	require.Equal(t, "payload", string(original.Payload))

	require.NoError(t, s.Close())
	_, open := <-out
	require.False(t, open)
}

func TestDuplicateConcurrent(t *testing.T) {
	t.Parallel()
	in := &source{messages: make(chan *message.Message)}
	s := duplicating(t, in, inboxtest.DuplicateSubscriberConfig{Copies: 3, Concurrent: true})
	out := subscribe(t, s)
	original := newMessage(t.Context())
	in.messages <- original
	first := <-out
	require.True(t, first.Ack())
	<-first.Context().Done() // although nobody has taken the second copy
	second, third := <-out, <-out
	require.True(t, third.Ack())
	select {
	case <-original.Acked():
		t.Fatal("acked before all copies are")
	case <-time.After(5 * time.Millisecond):
	}
	require.True(t, second.Ack())
	<-original.Acked()
	require.NoError(t, s.Close())
}

func TestDuplicateNack(t *testing.T) {
	t.Parallel()
	for _, concurrent := range []bool{false, true} {
		for nacked := range 3 {
			in := &source{messages: make(chan *message.Message)}
			s := duplicating(t, in, inboxtest.DuplicateSubscriberConfig{Copies: 3, Concurrent: concurrent})
			out := subscribe(t, s)
			original := newMessage(t.Context())
			in.messages <- original
			for i := range 3 {
				if i > nacked && !concurrent {
					break // the copies behind a nack do not come
				}
				if c := <-out; i == nacked {
					require.True(t, c.Nack())
				} else {
					require.True(t, c.Ack())
				}
			}
			<-original.Nacked()
			require.NoError(t, s.Close())
		}
	}
}

// TestDuplicateEnds: whatever ends, a copy that is neither acked nor nacked, and one that
// nobody takes, end with it, and the message is nacked.
func TestDuplicateEnds(t *testing.T) {
	t.Parallel()
	for _, concurrent := range []bool{false, true} {
		for _, taken := range []bool{false, true} {
			ends := map[string]func(msg, sub context.CancelFunc, s *inboxtest.DuplicateSubscriber){
				"message": func(msg, _ context.CancelFunc, _ *inboxtest.DuplicateSubscriber) { msg() },
				"subscription": func(_, sub context.CancelFunc, _ *inboxtest.DuplicateSubscriber) {
					sub()
				},
				"subscriber": func(_, _ context.CancelFunc, s *inboxtest.DuplicateSubscriber) {
					require.NoError(t, s.Close())
				},
			}
			for name, end := range ends {
				in := &source{messages: make(chan *message.Message)}
				s := duplicating(t, in, inboxtest.DuplicateSubscriberConfig{Concurrent: concurrent})
				subCtx, cancelSub := context.WithCancel(t.Context())
				msgCtx, cancelMsg := context.WithCancel(t.Context())
				out, err := s.Subscribe(subCtx, "topic")
				require.NoError(t, err)
				original := newMessage(msgCtx)
				in.messages <- original
				if taken {
					c := <-out
					end(cancelMsg, cancelSub, s)
					<-c.Context().Done()
				} else {
					end(cancelMsg, cancelSub, s)
				}
				select {
				case <-original.Nacked():
				case <-time.After(10 * time.Second):
					t.Fatalf("end of %s: not nacked (concurrent %t, taken %t)", name, concurrent, taken)
				}
				require.NoError(t, s.Close())
				require.NoError(t, s.Close())
				cancelSub()
				cancelMsg()
			}
		}
	}
}

// TestDuplicateKeepsConcurrency: a subscriber that sends on before the ack can still do so.
func TestDuplicateKeepsConcurrency(t *testing.T) {
	t.Parallel()
	in := &source{messages: make(chan *message.Message)}
	s := duplicating(t, in, inboxtest.DuplicateSubscriberConfig{})
	out := subscribe(t, s)
	originals := make([]*message.Message, 10)
	copies := make([]*message.Message, 10)
	for i := range originals {
		originals[i] = newMessage(t.Context())
		originals[i].UUID = string(rune('a' + i))
		in.messages <- originals[i]
		copies[i] = <-out
		require.Equal(t, originals[i].UUID, copies[i].UUID)
	}
	for i := range originals {
		require.True(t, copies[i].Ack())
		second := <-out
		require.Equal(t, originals[i].UUID, second.UUID)
		require.True(t, second.Ack())
		<-originals[i].Acked()
	}
	require.NoError(t, s.Close())
}

func TestDuplicateErrors(t *testing.T) {
	t.Parallel()
	_, err := inboxtest.NewDuplicateSubscriber(nil, inboxtest.DuplicateSubscriberConfig{})
	require.Error(t, err)
	_, err = inboxtest.NewDuplicateSubscriber(&source{}, inboxtest.DuplicateSubscriberConfig{Copies: -1})
	require.ErrorContains(t, err, "Copies is -1")

	failure := errors.New("failure")
	s := duplicating(t, &source{messages: make(chan *message.Message), err: failure}, inboxtest.DuplicateSubscriberConfig{})
	_, err = s.Subscribe(t.Context(), "topic")
	require.ErrorIs(t, err, failure)
	require.NoError(t, s.SubscribeInitialize("topic"))
	require.ErrorIs(t, s.Close(), failure)
}

// TestDuplicatePubSub runs the tests of watermill's own suite that a single instance in memory
// can pass and that may see duplicates.
func TestDuplicatePubSub(t *testing.T) {
	t.Parallel()
	features := tests.Features{ForceShort: true, RequireSingleInstance: true}
	for name, config := range map[string]inboxtest.DuplicateSubscriberConfig{
		"sequential": {Copies: 2},
		"concurrent": {Copies: 3, Concurrent: true},
	} {
		constructor := func(t *testing.T) (message.Publisher, message.Subscriber) {
			pubSub := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 1000, Persistent: true}, watermill.NopLogger{})
			return pubSub, duplicating(t, pubSub, config)
		}
		for test, run := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
			"PublishSubscribe":                  tests.TestPublishSubscribe,
			"ConcurrentSubscribe":               tests.TestConcurrentSubscribe,
			"ConcurrentSubscribeMultipleTopics": tests.TestConcurrentSubscribeMultipleTopics,
			"ResendOnError":                     tests.TestResendOnError,
			"ContinueAfterErrors":               tests.TestContinueAfterErrors,
			"PublisherClose":                    tests.TestPublisherClose,
			"Topic":                             tests.TestTopic,
			"MessageCtx":                        tests.TestMessageCtx,
			"SubscribeCtx":                      tests.TestSubscribeCtx,
		} {
			t.Run(name+"/"+test, func(t *testing.T) {
				t.Parallel()
				run(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, constructor)
			})
		}
	}
}

// TestDuplicateRouter handles all copies of all messages in a router, although one call fails.
func TestDuplicateRouter(t *testing.T) {
	t.Parallel()
	for _, concurrent := range []bool{false, true} {
		pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		for range 100 {
			require.NoError(t, pubSub.Publish("topic", message.NewMessage(watermill.NewUUID(), nil)))
		}
		var mu sync.Mutex
		calls, complete, successes := 0, 0, map[string]int{}
		all := make(chan struct{})

		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		sub := duplicating(t, pubSub, inboxtest.DuplicateSubscriberConfig{Copies: 3, Concurrent: concurrent})
		router.AddConsumerHandler("handler", "topic", sub, func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			calls++
			if calls == 2 {
				return errors.New("try again")
			}
			successes[msg.UUID]++
			if successes[msg.UUID] == 3 {
				complete++
			}
			if complete == 100 && successes[msg.UUID] == 3 {
				close(all)
			}
			return nil
		})
		done := make(chan error, 1)
		go func() { done <- router.Run(t.Context()) }()
		<-all
		require.NoError(t, router.Close())
		require.NoError(t, <-done)
		mu.Lock()
		require.LessOrEqual(t, calls, 303)
		mu.Unlock()
	}
}
