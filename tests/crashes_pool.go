package tests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// pools are the cases about pools with no connection to spare.
func (s *suite) pools() []testCase {
	return []testCase{
		{"B7_PoolOfOne", s.b7(1)},
		{"B7_PoolOfAsManyAsHandlers", s.b7(8)},
		{"B7_FailuresOnAPoolOfOne", s.b7Failures},
	}
}

// b7 delivers three copies of each message at the same time to a pool of the given size. The first handlers go on only
// when they have taken all of it; every third message fails at first, every fifth panics.
func (s *suite) b7(size int) func(*testing.T) {
	return func(t *testing.T) {
		r := s.rig(t, Options{PoolSize: size}, inbox.Config{})
		const messages, copies = 30, 3
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()

		full := make(chan struct{}) // closed when the pool has nothing to give
		go func() {
			defer close(full)
			for r.InUse() < size && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}()
		errs := make([]error, messages*copies)
		var wg sync.WaitGroup
		for i := range messages {
			msg := newMessage("pay")
			name := fmt.Sprint("pay", i)
			var attempts atomic.Int64
			handler := r.writesThen(name, func(*message.Message) error {
				<-full
				switch n := attempts.Add(1); {
				case i%5 == 0 && n == 1:
					panic("index out of range")
				case i%3 == 0 && n <= 2:
					return errHandler
				}
				return nil
			})
			for copyNo := range copies {
				wg.Go(func() { errs[i*copies+copyNo] = r.redeliver(ctx, msg, handler) })
			}
		}
		within(t, 2*patience, "deliveries", wg.Wait)

		for _, err := range errs {
			require.NoError(t, err, "every copy is acked in time")
		}
		for i := range messages {
			require.Equal(t, 1, r.Count(t, fmt.Sprint("pay", i)))
		}
		require.Equal(t, messages, r.Rows(t))
		require.Equal(t, messages, r.events.count(inbox.OutcomeProcessed))
		require.Equal(t, messages*(copies-1), r.events.count(inbox.OutcomeDuplicate))
		r.requireIdle(t)
	}
}

// b7Failures lets deliveries fail in every way that needs no broken network, on the only connection of the pool: it is
// given back each time.
func (s *suite) b7Failures(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1, Config: sqlinbox.Config{DoneTTL: -1}}, inbox.Config{}) // duplicates are read each time
	msg := newMessage("pay 10")
	deliver := func(msg *message.Message, handler message.HandlerFunc) error {
		t.Helper()
		err := r.handleWithin(t, msg, handler)
		require.Equal(t, 0, r.InUse(), "after %v", err)
		return err
	}
	fails := func(*message.Message) ([]*message.Message, error) { return nil, errHandler }

	require.ErrorIs(t, deliver(msg.Copy(), fails), errHandler)
	require.NoError(t, deliver(msg.Copy(), r.writes("pay")))
	require.NoError(t, deliver(msg.Copy(), fails), "a duplicate")
	require.ErrorIs(t, deliver(message.NewMessage(msg.UUID, message.Payload("pay 20")), fails), inbox.ErrMismatch)

	// Another message waits for the connection, and gives up.
	impatient := newMessage("pay 30")
	require.NoError(t, deliver(newMessage("pay 40"), func(*message.Message) ([]*message.Message, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		waiting := impatient.Copy()
		waiting.SetContext(ctx)
		if err := r.handle(waiting, r.writes("pay")); !errors.Is(err, context.DeadlineExceeded) || !inbox.IsTransient(err) {
			return nil, fmt.Errorf("no time-out but %w", err)
		}
		return nil, nil
	}))
	require.NoError(t, deliver(impatient, r.writes("impatient")))

	require.Equal(t, 1, r.Count(t, "pay"))
	_, err := r.DB.ExecContext(context.Background(), "DROP TABLE "+r.Memory)
	require.NoError(t, err)
	for range 2 {
		require.ErrorIs(t, deliver(newMessage("pay 50"), r.writes("pay")), inbox.ErrSchema)
	}
}
