package tests

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// reused gives a message and another one with the same id.
func reused() (right, wrong *message.Message) {
	right, wrong = newMessage("pay 10"), newMessage("pay 20")
	wrong.UUID = right.UUID
	return right, wrong
}

// refused passes a message through and checks that it is refused for good.
func (r *rig) refused(t *testing.T, msg *message.Message, want error) {
	t.Helper()
	effects := r.Total(t)
	err := r.handle(msg.Copy(), r.writes("wrong"))
	require.ErrorIs(t, err, want)
	require.True(t, inbox.IsPermanent(err))
	require.False(t, inbox.IsTransient(err))
	require.Equal(t, effects, r.Total(t))
	r.requireIdle(t)
}

// queue makes all processed messages such that wait in the two-phase queue.
func (r *rig) queue(t *testing.T) {
	t.Helper()
	r.alter(t, "UPDATE "+r.Memory+" SET processed_at = NULL")
}

func (r *rig) alter(t *testing.T, statement string) {
	t.Helper()
	_, err := r.DB.ExecContext(context.Background(), statement)
	require.NoError(t, err)
}

func (s *suite) a8(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		right, wrong := reused()
		require.NoError(t, r.handle(right.Copy(), r.writes("pay")))
		for range 2 {
			elsewhere.refused(t, wrong, inbox.ErrMismatch)
			again := right.Copy()
			again.Metadata.Set("hop", "2") // metadata is not content
			require.NoError(t, elsewhere.handle(again, r.writes("pay")), "the right copy still is a duplicate")
		}
		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeMismatch: 2, inbox.OutcomeDuplicate: 2})
	})
}

func (s *suite) a8Queued(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	right, wrong := reused()
	require.NoError(t, r.handle(right.Copy(), r.writes("pay")))
	r.queue(t)
	elsewhere := s.beside(t, r, Options{}, inbox.Config{}) // knows nothing but the row
	produced, err := elsewhere.Middleware(elsewhere.writes("pay"))(right.Copy())
	require.NoError(t, err, "a copy of what is queued is acked")
	require.Empty(t, produced)
	elsewhere.refused(t, wrong, inbox.ErrMismatch)
	require.Equal(t, 1, r.Total(t))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeQueued: 1, inbox.OutcomeMismatch: 1})
}

func (s *suite) a8InFlight(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		right, wrong := reused()
		stop := newGate(t)
		first := r.start(right.Copy(), stop.after(r.writes("pay")))
		stop.wait(t)
		second := elsewhere.start(wrong.Copy(), elsewhere.writes("wrong"))
		s.meet(t, r, elsewhere, second)
		stop.open()
		require.NoError(t, first.end(t))
		err := second.end(t)
		require.ErrorIs(t, err, inbox.ErrMismatch)
		require.True(t, inbox.IsPermanent(err))
		require.NoError(t, elsewhere.handle(right.Copy(), elsewhere.writes("pay")), "just after a mismatch the right copy is a duplicate")
		require.Equal(t, 1, r.Total(t))
		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeMismatch: 1, inbox.OutcomeDuplicate: 1})
	})
}

// a8Failed: nothing is remembered of a message that failed, so the other payload is the first of its id.
func (s *suite) a8Failed(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, r, elsewhere *rig) {
		right, wrong := reused()
		require.ErrorIs(t, r.handle(right.Copy(), func(*message.Message) ([]*message.Message, error) {
			return nil, errHandler
		}), errHandler)
		require.NoError(t, elsewhere.handle(wrong.Copy(), elsewhere.writes("pay")))
		r.refused(t, right, inbox.ErrMismatch)
		r.processedOnce(t)
	})
}

func (s *suite) a8Report(t *testing.T) {
	config := inbox.Config{Mismatch: inbox.MismatchReport}
	s.inBothPlaces(t, Options{}, config, func(t *testing.T, r, elsewhere *rig) {
		right, wrong := reused()
		require.NoError(t, r.handle(right.Copy(), r.writes("pay")))
		require.NoError(t, elsewhere.handle(wrong.Copy(), elsewhere.writes("pay")))
		require.NoError(t, elsewhere.handle(wrong.Copy(), elsewhere.writes("pay")))
		r.queue(t)
		queued := s.beside(t, r, Options{}, config)
		require.NoError(t, queued.handle(wrong.Copy(), queued.writes("pay")))
		require.NoError(t, queued.handle(right.Copy(), queued.writes("pay")))
		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeMismatch: 3, inbox.OutcomeQueued: 1})
		said := 0
		for _, line := range r.logs.at("INFO") {
			if strings.Contains(line.text, "other content") {
				said++
			}
		}
		require.Equal(t, 2, said, "a warning once per inbox and handler")
	})
}

func (s *suite) a8ReportInFlight(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{Mismatch: inbox.MismatchReport}, func(t *testing.T, r, elsewhere *rig) {
		right, wrong := reused()
		stop := newGate(t)
		first := r.start(right.Copy(), stop.after(r.writes("pay")))
		stop.wait(t)
		second := elsewhere.start(wrong.Copy(), elsewhere.writes("wrong"))
		s.meet(t, r, elsewhere, second)
		stop.open()
		require.NoError(t, first.end(t))
		require.NoError(t, second.end(t))
		r.processedOnce(t)
		require.Equal(t, 1, r.Total(t))
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeMismatch: 1})
	})
}

// a8Fingerprint has a producer that stamps every copy anew: only the first field matters.
func (s *suite) a8Fingerprint(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{Fingerprint: func(msg *message.Message) []byte {
		amount, _, _ := strings.Cut(string(msg.Payload), ";")
		return []byte(amount + msg.Metadata.Get("currency"))
	}})
	id := inbox.NewUUID()
	version := func(payload, currency string) *message.Message {
		msg := message.NewMessage(id, message.Payload(payload))
		msg.Metadata.Set("currency", currency)
		return msg
	}
	require.NoError(t, r.handle(version("pay 10;sent 12:00", "EUR"), r.writes("pay")))
	require.NoError(t, r.handle(version("pay 10;sent 12:01", "EUR"), r.writes("pay")))
	r.refused(t, version("pay 20;sent 12:00", "EUR"), inbox.ErrMismatch)
	r.refused(t, version("pay 10;sent 12:00", "JPY"), inbox.ErrMismatch)
	r.processedOnce(t)
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1, inbox.OutcomeMismatch: 2})
}

// a8OwnHandler has a handler that changes the payload and fails; a retry around the inbox brings the same message.
func (s *suite) a8OwnHandler(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay 10")
	original := msg.Copy()
	calls := 0
	handler := func(msg *message.Message) ([]*message.Message, error) {
		calls++
		require.Equal(t, "pay 10", string(msg.Payload))
		copy(msg.Payload, "xxx")
		msg.Payload = append(msg.Payload, " and more"...)
		if calls == 1 {
			return nil, errHandler
		}
		return nil, r.Write(msg.Context(), "pay")
	}
	original.Payload = message.Payload(string(original.Payload)) // Copy shares the bytes
	require.ErrorIs(t, r.handle(msg, handler), errHandler)
	require.NoError(t, r.handle(msg, handler))
	require.NoError(t, r.handle(original, handler), "a duplicate")
	r.processedOnce(t)
}

// a8Collision changes who is remembered under the message's storage key.
func (s *suite) a8Collision(t *testing.T) {
	for _, part := range []string{"consumer", "source", "message_id"} {
		r := s.rig(t, Options{}, inbox.Config{})
		right, wrong := reused()
		require.NoError(t, r.handle(right.Copy(), r.writes("pay")))
		r.alter(t, "UPDATE "+r.Memory+" SET "+part+" = 'another'")
		elsewhere := s.beside(t, r, Options{}, inbox.Config{}) // knows nothing but the row
		elsewhere.refused(t, right, inbox.ErrKeyCollision)
		elsewhere.refused(t, wrong, inbox.ErrKeyCollision)
		r.queue(t)
		elsewhere.refused(t, right, inbox.ErrKeyCollision)
		report := s.beside(t, r, Options{}, inbox.Config{Mismatch: inbox.MismatchReport})
		report.refused(t, right, inbox.ErrKeyCollision) // no policy lets another message pass for a copy
		r.processedOnce(t)
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeCollision: 4})
	}
}

// a8Late has messages around the horizon: the latest message time that the memory has forgotten.
func (s *suite) a8Late(t *testing.T) {
	clock := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	var timeOf map[string]time.Time
	config := inbox.Config{MessageTime: func(msg *message.Message) time.Time { return timeOf[msg.UUID] }}
	r := s.rig(t, Options{}, config)
	handled, before, at, after, unknown := newMessage("1"), newMessage("2"), newMessage("3"), newMessage("4"), newMessage("5")
	timeOf = map[string]time.Time{
		handled.UUID: clock.Add(-time.Minute), before.UUID: clock.Add(-time.Millisecond), at.UUID: clock,
		after.UUID: clock.Add(time.Millisecond),
	}
	require.NoError(t, r.handle(handled.Copy(), r.writes("early")))
	r.raiseHorizon(t, consumer, clock)

	r.refused(t, before, inbox.ErrLate)
	r.refused(t, at, inbox.ErrLate)
	require.NoError(t, r.handle(after.Copy(), r.writes("after")))
	require.NoError(t, r.handle(unknown.Copy(), r.writes("unguarded")), "nothing is known of its age")
	elsewhere := s.beside(t, r, Options{}, config)
	require.NoError(t, elsewhere.handle(handled.Copy(), elsewhere.writes("early")), "what is remembered is a duplicate, late or not")
	elsewhere.refused(t, message.NewMessage(handled.UUID, message.Payload("other")), inbox.ErrMismatch)

	require.Equal(t, 1, r.Count(t, "early"))
	require.Equal(t, 1, r.Count(t, "after"))
	require.Equal(t, 1, r.Count(t, "unguarded"))
	r.told(t, map[inbox.Outcome]int{
		inbox.OutcomeProcessed: 3, inbox.OutcomeLate: 2, inbox.OutcomeDuplicate: 1, inbox.OutcomeMismatch: 1,
	})
	for _, event := range r.events.all() {
		require.Equal(t, event.Key.ID == unknown.UUID, event.Unguarded)
	}

	// Another consumer has forgotten nothing. The time inside an id is the default.
	other, err := inbox.New(r.Store, inbox.Config{})
	require.NoError(t, err)
	_, err = other.As("mail")(r.writes("mail"))(before.Copy())
	require.NoError(t, err)
	r.raiseHorizon(t, "mail", time.Now().Add(time.Minute))
	_, err = other.As("mail")(r.writes("mail"))(newMessage("pay 10"))
	require.ErrorIs(t, err, inbox.ErrLate)
	_, err = other.As("mail")(r.writes("mail"))(before.Copy())
	require.NoError(t, err)
	require.Equal(t, 1, r.Count(t, "mail"))
}

func (r *rig) raiseHorizon(t *testing.T, consumer string, to time.Time) {
	t.Helper()
	value := quoted(to.UTC().Format("2006-01-02 15:04:05.999999"))
	switch r.Config.Dialect {
	case sqlinbox.PostgreSQL:
		value = "TIMESTAMP " + value + " AT TIME ZONE 'UTC'"
	case sqlinbox.SQLite:
		value = strconv.FormatInt(to.UnixMilli(), 10)
	}
	r.alter(t, "INSERT INTO "+r.Horizons+" (id, consumer, source, scope, horizon) VALUES ("+r.Bytes16(inbox.Key{Consumer: consumer}.Storage())+", "+quoted(consumer)+", '', '', "+value+")")
}
