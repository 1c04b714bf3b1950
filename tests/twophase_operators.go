package tests

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// queueOperators are the cases about what operators see of the queue.
func (s *suite) queueOperators() []testCase {
	return []testCase{
		{"E5_NumbersOfTheQueue", s.queueNumbers},
		{"E5_HealthOfTheQueue", s.queueHealth},
	}
}

func (s *suite) queueNumbers(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	q := r.queueStore(t)
	ctx := context.Background()
	stats, err := q.Stats(ctx)
	require.NoError(t, err)
	require.Empty(t, stats)

	dead, publishing := newMessage("dead"), newMessage("publishing")
	r.store(t, dead, publishing)
	out := &flakyPublisher{failures: 1 << 30}
	slow := sqlinbox.SubscriberConfig{MaxAttempts: 1, BackoffMin: time.Hour, BackoffMax: time.Hour}
	w := r.work(t, workerConfig{publisher: out, SubscriberConfig: slow}, func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "dead" {
			return nil, errHandler
		}
		return []*message.Message{newMessage("out")}, nil
	})
	r.inState(t, dead.UUID, sqlinbox.QueueDead)
	row := r.inState(t, publishing.UUID, sqlinbox.QueuePublishing)
	require.NoError(t, w.Close())
	waiting := newMessage("waiting")
	r.store(t, waiting)
	require.NoError(t, r.Intake("mail")(newMessage("mail")))
	time.Sleep(20 * time.Millisecond)

	stats, err = q.Stats(ctx)
	require.NoError(t, err)
	require.Len(t, stats, 2)
	require.Equal(t, consumer, stats[0].Consumer)
	require.Equal(t, []int64{1, 1, 1}, []int64{stats[0].Waiting, stats[0].Publishing, stats[0].Dead})
	require.Greater(t, stats[0].OldestWaiting, 10*time.Millisecond)
	require.Less(t, stats[0].OldestWaiting, patience)
	require.Equal(t, "mail", stats[1].Consumer)

	stuck, err := q.Stuck(ctx, 0)
	require.NoError(t, err)
	require.Len(t, stuck, 4)
	require.Equal(t, inbox.Key{Consumer: consumer, ID: dead.UUID}, stuck[0].Key)
	require.Equal(t, sqlinbox.QueueDead, stuck[0].State)
	require.Equal(t, sqlinbox.QueueWaiting, stuck[2].State)
	stuck, err = q.Stuck(ctx, time.Hour)
	require.NoError(t, err)
	require.Empty(t, stuck)

	killed, err := q.Kill(ctx, row.Seq)
	require.NoError(t, err)
	require.True(t, killed)
	require.Equal(t, 0, r.recorded(t), "what was to be published is given up with it")
	produced, err := r.Middleware(r.writes("pay"))(publishing.Copy())
	require.NoError(t, err)
	require.Empty(t, produced)
}

func (s *suite) queueHealth(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	check := r.queueStore(t).HealthCheck(50 * time.Millisecond)
	require.NoError(t, check(t.Context()))
	r.store(t, newMessage("pay"))
	require.NoError(t, r.queueStore(t).HealthCheck(time.Hour)(t.Context()), "it may wait for a while")
	require.Eventually(t, func() bool { return check(t.Context()) != nil }, patience, 10*time.Millisecond)
	require.ErrorIs(t, check(t.Context()), sqlinbox.ErrQueueStuck)
	require.ErrorContains(t, check(t.Context()), consumer)
	r.work(t, workerConfig{}, r.writes("pay"))
	r.drained(t)
	require.NoError(t, check(t.Context()))
}
