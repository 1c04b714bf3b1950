package tests

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// cancelled has a handler whose message's context is cancelled while it runs, as NATS does after AckWait, and then a
// second copy, in this process or in another one.
func (s *suite) cancelled(t *testing.T, config inbox.Config, run func(t *testing.T, c cancelledCopies)) {
	t.Helper()
	s.inBothPlaces(t, Options{}, config, func(t *testing.T, r, elsewhere *rig) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		msg := newMessage("pay 10")
		again := msg.Copy()
		msg.SetContext(ctx)
		stop := newGate(t)
		first := r.start(msg, func(msg *message.Message) ([]*message.Message, error) {
			if _, err := stop.after(r.writes("before"))(msg); err != nil {
				return nil, err
			}
			return nil, r.Write(msg.Context(), "pay")
		})
		stop.wait(t)
		cancel()
		run(t, cancelledCopies{r, elsewhere, first, elsewhere.start(again, elsewhere.writes("pay")), stop})
	})
}

type cancelledCopies struct {
	r, elsewhere  *rig
	first, second *inHand
	stop          *gate
}

func (s *suite) a4Cancelled(t *testing.T) {
	s.cancelled(t, inbox.Config{}, func(t *testing.T, c cancelledCopies) {
		err := c.first.end(t)
		require.ErrorIs(t, err, context.Canceled, "the cancellation reaches the handler")
		require.True(t, inbox.IsTransient(err))
		require.NoError(t, c.second.end(t))
		require.Equal(t, 0, c.r.Count(t, "before"), "the cancelled handler's work is rolled back")
		c.r.processedOnce(t)
		c.r.told(t, map[inbox.Outcome]int{inbox.OutcomeFailed: 1, inbox.OutcomeProcessed: 1})
	})
}

func (s *suite) a4Grace(t *testing.T) {
	s.cancelled(t, inbox.Config{Grace: time.Hour}, func(t *testing.T, c cancelledCopies) {
		s.meet(t, c.r, c.elsewhere, c.second)
		c.stop.open()
		require.NoError(t, c.first.end(t), "within the grace time the handler does not notice")
		require.NoError(t, c.second.end(t))
		require.Equal(t, 1, c.r.Count(t, "before"))
		c.r.processedOnce(t)
		c.r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1})
	})
}

func (s *suite) a4GraceEnds(t *testing.T) {
	s.cancelled(t, inbox.Config{Grace: 20 * time.Millisecond}, func(t *testing.T, c cancelledCopies) {
		require.ErrorIs(t, c.first.end(t), context.Canceled, "after the grace time the cancellation reaches the handler")
		require.NoError(t, c.second.end(t))
		require.Equal(t, 0, c.r.Count(t, "before"))
		c.r.processedOnce(t)
	})
}

func (s *suite) a4Deadline(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{Grace: time.Hour})
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	msg := newMessage("pay 10")
	again := msg.Copy()
	msg.SetContext(ctx)
	err := r.start(msg, newGate(t).after(r.writes("pay"))).end(t)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, inbox.IsTransient(err))
	require.NoError(t, r.handle(again, r.writes("pay")))
	r.processedOnce(t)
}
