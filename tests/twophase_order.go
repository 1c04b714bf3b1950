package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// queueOrder are the cases about messages with order keys.
func (s *suite) queueOrder() []testCase {
	return []testCase{
		{"E6_OrderOverFailures", s.e6},
		{"E6_DeadHeadIsRequeued", s.e6Dead(true)},
		{"E6_DeadHeadIsKilled", s.e6Dead(false)},
		{"E6_PublishingHeadBlocks", s.e6Publishing},
		{"E6_ManyKeysInOrder", s.e6Many},
		{"E6_OrderAtEachIsolationLevel", s.e6Levels},
		{"E7_LateCommitIsNotPassedOver", s.e7(false)},
		{"E7_RolledBackBeforeALaterOne", s.e7(true)},
	}
}

// keyed makes a message with an order key.
func keyed(key, payload string) *message.Message {
	msg := newMessage(payload)
	msg.Metadata.Set("order", key)
	return msg
}

func orderKey(msg *message.Message) string { return msg.Metadata.Get("order") }

func (s *suite) orderedRig(t *testing.T) *rig {
	t.Helper()
	return s.rig(t, Options{}, inbox.Config{OrderKey: orderKey})
}

// e6 has a message that fails twice in front of another one with its key, four workers, and a third one with another key.
func (s *suite) e6(t *testing.T) {
	r := s.orderedRig(t)
	r.store(t, keyed("K", "m1"), keyed("K", "m2"), keyed("L", "l1"))
	var done starts
	other := make(chan struct{})
	for range 4 {
		r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
			name := string(msg.Payload)
			switch {
			case name == "l1":
				defer close(other)
			case name == "m1" && attempt(msg) == 1:
				<-other // the other key is not delayed by this one
				return nil, errHandler
			case name == "m1" && attempt(msg) == 2:
				return nil, errHandler
			}
			done.add(name)
			return nil, r.Write(msg.Context(), name)
		})
	}
	r.finished(t, "m2", 3)
	require.Equal(t, []string{"l1", "m1", "m2"}, done.names())
}

// e6Dead has a dead message in front of another one with its key, which waits until an operator decides.
func (s *suite) e6Dead(requeue bool) func(*testing.T) {
	return func(t *testing.T) {
		r := s.orderedRig(t)
		q := r.queueStore(t)
		m1, m2 := keyed("K", "m1"), keyed("K", "m2")
		r.store(t, m1, m2, keyed("L", "l1"))
		var done starts
		r.work(t, workerConfig{SubscriberConfig: sqlinbox.SubscriberConfig{MaxAttempts: 1}}, func(msg *message.Message) ([]*message.Message, error) {
			name := string(msg.Payload)
			if done.add(name) == 1 && name == "m1" {
				return nil, errHandler
			}
			return nil, r.Write(msg.Context(), name)
		})
		dead := r.inState(t, m1.UUID, sqlinbox.QueueDead)
		require.Eventually(t, func() bool { return r.Count(t, "l1") == 1 }, patience, 5*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 0, r.Count(t, "m2"), "its head is dead")
		row, there := r.row(t, m2.UUID)
		require.True(t, there)
		require.Equal(t, 0, row.Attempts)

		if requeue {
			done, err := q.Requeue(context.Background(), dead.Seq)
			require.NoError(t, err)
			require.True(t, done)
		} else {
			done, err := q.Kill(context.Background(), dead.Seq)
			require.NoError(t, err)
			require.True(t, done)
		}
		r.finished(t, "m2", 3)
		want := []string{"m1", "m2"}
		if requeue {
			want = []string{"m1", "m1", "m2"}
		}
		require.Equal(t, want, slices.DeleteFunc(done.names(), func(name string) bool { return name == "l1" }))
	}
}

// e6Publishing has a message whose publishing fails at first in front of another one with its key.
func (s *suite) e6Publishing(t *testing.T) {
	r := s.orderedRig(t)
	r.store(t, keyed("K", "m1"), keyed("K", "m2"))
	out := &flakyPublisher{failures: 3, published: make(chan struct{}, 16)}
	r.work(t, workerConfig{publisher: out}, func(msg *message.Message) ([]*message.Message, error) {
		name := string(msg.Payload)
		if name == "m2" {
			require.Len(t, out.attempts(), 4, "m1 is published")
		}
		return []*message.Message{message.NewMessage("out-"+name, nil)}, r.Write(msg.Context(), name)
	})
	r.finished(t, "m2", 2)
	require.Equal(t, 1, r.Count(t, "m1"))
	require.Equal(t, [][]string{{"out-m1"}, {"out-m1"}, {"out-m1"}, {"out-m1"}, {"out-m2"}}, out.attempts())
}

// e6Many stores many messages of some keys from many callers, each key from one of them, under four workers some of whose
// attempts fail: each key's are handled in their order.
func (s *suite) e6Many(t *testing.T) {
	r := s.orderedRig(t)
	var done starts
	for range 4 {
		r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
			if attempt(msg) == 1 && len(msg.UUID) > 0 && msg.UUID[len(msg.UUID)-1]%4 == 0 {
				return nil, errHandler
			}
			done.add(string(msg.Payload))
			return nil, r.Write(msg.Context(), orderKey(msg))
		})
	}
	const keys = 8
	each := Scale(200, 20)
	var wg sync.WaitGroup
	for key := range keys {
		wg.Go(func() {
			for i := range each {
				_ = r.Intake(consumer)(keyed(fmt.Sprint("K", key), fmt.Sprintf("K%d/%04d", key, i)))
			}
		})
	}
	within(t, 3*patience, "the intakes", wg.Wait)
	stored := r.events.count(inbox.OutcomeStored)
	require.Greater(t, stored, keys*each/2)
	r.drained(t)
	require.Equal(t, stored, r.Total(t))
	for key := range keys {
		mine := slices.DeleteFunc(done.names(), func(name string) bool { return !strings.HasPrefix(name, fmt.Sprint("K", key, "/")) })
		require.True(t, slices.IsSorted(mine), "%v", mine)
	}
}

// e6Levels has an order key at every isolation level of the handlers: the next message is made ready at each. Work for
// later with an order key is refused in a transaction that cannot see what stands before it.
func (s *suite) e6Levels(t *testing.T) {
	for _, level := range s.Isolation {
		t.Run(level.String(), func(t *testing.T) {
			r := s.rig(t, Options{Config: sqlinbox.Config{Isolation: level}}, inbox.Config{OrderKey: orderKey})
			var done starts
			r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
				if attempt(msg) == 1 && string(msg.Payload) == "m1" {
					return nil, errHandler
				}
				done.add(string(msg.Payload))
				return nil, r.Write(msg.Context(), string(msg.Payload))
			})
			r.store(t, keyed("K", "m1"), keyed("K", "m2"), keyed("K", "m3"))
			r.finished(t, "m3", 3)
			require.Equal(t, []string{"m1", "m2", "m3"}, done.names())

			publisher := r.queueStore(t).NewPublisher(sqlinbox.PublisherConfig{OrderKey: orderKey})
			err := r.handle(newMessage("inline"), func(msg *message.Message) ([]*message.Message, error) {
				m4 := keyed("K", "m4")
				m4.SetContext(msg.Context())
				return nil, publisher.Publish(consumer, m4)
			})
			if level == sql.LevelReadCommitted || !s.Server {
				require.NoError(t, err)
				r.finished(t, "m4", 5)
				return
			}
			require.ErrorContains(t, err, "READ COMMITTED")
			require.Equal(t, 0, r.queued(t))
		})
	}
}

// e7 has a transaction that puts a message into a lane, and a later one that would commit first: the order is that of the
// sequence, and the first one is not passed over. Or it rolls back, and the later one is alone.
func (s *suite) e7(rolledBack bool) func(*testing.T) {
	return func(t *testing.T) {
		r := s.orderedRig(t)
		publisher := r.queueStore(t).NewPublisher(sqlinbox.PublisherConfig{OrderKey: orderKey})
		var done starts
		r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
			done.add(string(msg.Payload))
			return nil, r.Write(msg.Context(), string(msg.Payload))
		})
		published, commit := make(chan struct{}), make(chan struct{})
		first := r.start(newMessage("inline"), func(msg *message.Message) ([]*message.Message, error) {
			m1 := keyed("K", "m1")
			m1.SetContext(msg.Context())
			if err := publisher.Publish(consumer, m1); err != nil {
				return nil, err
			}
			close(published)
			<-commit
			if rolledBack {
				return nil, errHandler
			}
			return nil, nil
		})
		await(t, published, "the first transaction")
		second := make(chan error, 1)
		m2 := keyed("K", "m2")
		go func() {
			for {
				err := publisher.Publish(consumer, m2.Copy())
				if err == nil || !inbox.IsTransient(err) {
					second <- err
					return
				}
			}
		}()
		select {
		case err := <-second:
			t.Fatalf("the later one is stored before the earlier one: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		close(commit)
		err := first.end(t)
		within(t, patience, "the second transaction", func() { require.NoError(t, <-second) })
		r.drained(t)
		if rolledBack {
			require.ErrorIs(t, err, errHandler)
			require.Equal(t, []string{"m2"}, done.names())
			return
		}
		require.NoError(t, err)
		require.Equal(t, []string{"m1", "m2"}, done.names())
	}
}

var errCompensation = errors.New("compensation failed")
