package tests_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/tests"
)

func TestTwoPhaseSmoke(t *testing.T) {
	for _, c := range columns() {
		t.Run(c.features.Name, func(t *testing.T) {
			t.Parallel()
			if false {
				t.Skip("later")
			}
			env := c.harness(t, tests.Options{})
			in, err := inbox.New(env.Store, inbox.Config{Namespace: "billing"})
			require.NoError(t, err)
			queue, err := env.Store.(interface {
				NewSubscriber(sqlinbox.SubscriberConfig) (*sqlinbox.Subscriber, error)
			}).NewSubscriber(sqlinbox.SubscriberConfig{BackoffMin: time.Millisecond, Logger: watermill.NewStdLogger(false, false)})
			require.NoError(t, err)
			router, err := message.NewRouter(message.RouterConfig{}, watermill.NewStdLogger(false, false))
			require.NoError(t, err)
			router.AddMiddleware(in.Middleware)
			broker := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100, Persistent: true}, nil)
			out, err := broker.Subscribe(t.Context(), "receipts")
			require.NoError(t, err)
			var tries atomic.Int32
			_, err = inbox.TwoPhase(router, in, inbox.TwoPhaseConfig{
				Name: "charge", Topic: "orders", Subscriber: broker, Queue: queue, PublishTopic: "receipts", Publisher: broker,
				Handler: func(msg *message.Message) ([]*message.Message, error) {
					if tries.Add(1)%3 == 0 {
						return nil, errors.New("declined")
					}
					if err := env.Write(msg.Context(), msg.UUID); err != nil {
						return nil, err
					}
					return []*message.Message{message.NewMessage("r-"+msg.UUID, []byte("ok"))}, nil
				},
			})
			require.NoError(t, err)
			go func() { _ = router.Run(context.Background()) }()
			<-router.Running()
			const n = 50
			for i := range n {
				msg := message.NewMessage(fmt.Sprint("m", i), []byte("pay"))
				require.NoError(t, broker.Publish("orders", msg, msg.Copy()))
			}
			got := map[string]int{}
			for range n {
				select {
				case msg := <-out:
					got[msg.UUID]++
					msg.Ack()
				case <-time.After(20 * time.Second):
					t.Fatal("no receipt", len(got))
				}
			}
			require.Len(t, got, n)
			require.NoError(t, router.Close())
			require.Equal(t, n, env.Total(t))
			require.Equal(t, n, env.Rows(t))
			var left int
			require.NoError(t, env.DB.QueryRow("SELECT count(*) FROM "+queueTable(env)).Scan(&left))
			require.Zero(t, left)
		})
	}
}

func queueTable(env *tests.Env) string {
	return strings.Replace(env.Produced, "_produced", "_queue", 1)
}
