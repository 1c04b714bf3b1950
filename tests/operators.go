package tests

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// operators are the cases about what operators see (I).
func (s *suite) operators() []testCase {
	return slices.Concat([]testCase{
		{"I1_DuplicatesAreQuietAndCounted", s.i1},
		{"I3_ErrorsTellWhereAndWhy", s.i3},
		{"I4_BypassLeavesNoTrace", s.i4},
		{"I4_BypassHandlers", s.i4handlers},
	}, s.inputs())
}

func (s *suite) i1(t *testing.T) {
	const duplicates, workers = 1000, 8
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay 10")
	require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))

	var wg sync.WaitGroup
	errs := make([]error, duplicates)
	for worker := range workers {
		wg.Go(func() {
			for i := worker; i < duplicates; i += workers {
				errs[i] = r.handle(msg.Copy(), r.writes("pay"))
			}
		})
	}
	wg.Wait()

	require.NoError(t, errors.Join(errs...))
	require.Equal(t, duplicates, r.events.count(inbox.OutcomeDuplicate))
	require.Len(t, r.events.all(), duplicates+1)
	for _, event := range r.events.all() {
		require.NoError(t, event.Err)
		require.Equal(t, inbox.Key{Consumer: consumer, ID: msg.UUID}, event.Key)
	}
	require.Empty(t, r.logs.at("ERROR"))
	require.Empty(t, r.logs.at("INFO"))
	require.Len(t, r.logs.at("DEBUG"), duplicates)
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 1, r.Rows(t))
	require.Equal(t, 0, r.InUse())
}

func (s *suite) i4(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{
		Bypass: func(msg *message.Message) bool { return msg.Metadata.Get("skip") != "" },
	})
	calls := 0
	handler := func(msg *message.Message) ([]*message.Message, error) {
		calls++
		require.ErrorIs(t, r.Write(msg.Context(), "skipped"), inbox.ErrNoTx)
		require.Equal(t, 0, r.InUse(), "connections in use")
		if calls == 3 {
			return nil, errHandler
		}
		return []*message.Message{newMessage("produced")}, nil
	}
	for _, id := range []string{"1", "1", "1", ""} {
		msg := message.NewMessage(id, message.Payload("page viewed"))
		msg.Metadata.Set("skip", "yes")
		produced, err := r.Middleware(handler)(msg)
		if calls == 3 {
			require.Equal(t, errHandler, err, "the handler's error, untouched")
			continue
		}
		require.NoError(t, err)
		require.Len(t, produced, 1)
	}
	require.Equal(t, 4, calls, "handled every time it arrives")
	require.Equal(t, 4, r.events.count(inbox.OutcomeBypassed))
	require.Len(t, r.events.all(), 4)
	require.Equal(t, 0, r.Rows(t))
	require.Equal(t, 0, r.scalar(t, "SELECT count(*) FROM "+r.Consumers))

	// The others go through the inbox.
	require.NoError(t, r.handle(message.NewMessage("1", nil), r.writes("pay")))
	require.NoError(t, r.handle(message.NewMessage("1", nil), r.writes("pay")))
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 1, r.Rows(t))

	// Not even the store hears of it.
	deaf := newRig(t, &Env{Store: noStore{t}}, inbox.Config{Bypass: func(*message.Message) bool { return true }})
	require.NoError(t, deaf.handle(newMessage("page viewed"), func(*message.Message) ([]*message.Message, error) { return nil, nil }))
}

// noStore fails the test when it is used.
type noStore struct{ t testing.TB }

func (s noStore) Process(context.Context, inbox.Delivery, inbox.Func) (inbox.Result, error) {
	s.t.Error("the store was used")
	return inbox.Result{}, nil
}

// i4handlers skips by the names of router handlers and of commands.
func (s *suite) i4handlers(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{Bypass: inbox.BypassHandlers("events_forwarder", "requeuer")})
	write := func(msg *message.Message) error { return r.Write(msg.Context(), "pay") }
	require.ErrorIs(t, r.deliver("events_forwarder", newMessage("event"), write), inbox.ErrNoTx)
	require.Equal(t, 1, r.events.count(inbox.OutcomeBypassed))
	require.Equal(t, "events_forwarder", r.events.all()[0].Handler)
	require.Equal(t, "orders", r.events.all()[0].Topic)
	require.NoError(t, r.deliver("charge-card", newMessage("command"), write))
	require.Equal(t, 1, r.Rows(t))

	known := newRig(t, r.Env, inbox.Config{Bypass: inbox.BypassUnknown(nameOfPayload{}, "Charge")})
	require.ErrorIs(t, known.deliver("charge-card", newMessage("Refund"), write), inbox.ErrNoTx)
	require.NoError(t, known.deliver("charge-card", newMessage("Charge"), write))
	require.Equal(t, 1, known.events.count(inbox.OutcomeBypassed))
	require.Equal(t, 2, r.Rows(t))
	require.Equal(t, 2, r.Count(t, "pay"))
}

// nameOfPayload is a marshaler of commands that are nothing but their name.
type nameOfPayload struct{}

func (nameOfPayload) NameFromMessage(msg *message.Message) string { return string(msg.Payload) }

// deliver passes a message through the middleware as a router's handler of that name would.
func (r *rig) deliver(handler string, msg *message.Message, fn message.NoPublishHandlerFunc) error {
	return r.handle(inHandler(msg, handler, ""), func(msg *message.Message) ([]*message.Message, error) { return nil, fn(msg) })
}

// failure is a way to make a delivery fail.
type failure struct {
	name    string
	phase   inbox.Phase
	outcome inbox.Outcome
	is      error // what the error is to those who branch on it
	cause   bool  // the database's own error is in it
	says    []string
	// provoke gives what the middleware returned for the message with the id.
	provoke func(t *testing.T, id string) (*rig, error)
}

const (
	failingHandler  = "charge-card"
	failingConsumer = "accounting"
)

// failing is the rig of a failure: the handler's name is not the consumer's, so that each must be told.
func (s *suite) failing(t testing.TB, o Options, config inbox.Config) *rig {
	t.Helper()
	if config.Consumer == nil {
		config.Consumer = func(*message.Message) string { return failingConsumer }
	}
	return s.rig(t, o, config)
}

func (s *suite) i3(t *testing.T) {
	for _, f := range s.failures() {
		t.Run(f.name, func(t *testing.T) {
			id := inbox.NewUUID()
			switch f.name {
			case "NoID":
				id = ""
			case "IDTooLong":
				id = strings.Repeat("k", inbox.MaxIDLength+1)
			}
			r, err := f.provoke(t, id)
			require.Error(t, err)
			if f.is != nil {
				require.ErrorIs(t, err, f.is)
			}
			var told *inbox.Error
			require.ErrorAs(t, err, &told)
			require.Equal(t, f.phase, told.Phase)
			require.Equal(t, failingHandler, told.Handler)
			require.Equal(t, id, told.Key.ID)

			text := err.Error()
			require.True(t, strings.HasPrefix(text, "inbox: "+string(f.phase)+" "), text)
			require.Contains(t, text, failingHandler)
			require.Contains(t, text, id[:min(len(id), 100)])
			if f.name != "NoConsumer" {
				require.Contains(t, text, failingConsumer)
			}
			for _, word := range f.says {
				require.Contains(t, text, word)
			}
			if f.cause {
				require.Error(t, r.Cause(err), "the database's own error is not in: %v", err)
				require.Contains(t, text, r.Cause(err).Error())
			}

			events := r.events.all()
			last := events[len(events)-1]
			require.Equal(t, f.outcome, last.Outcome)
			require.Equal(t, err, last.Err)
			require.Equal(t, failingHandler, last.Handler)
			require.Equal(t, told.Key, last.Key)
			// pgx's pool lets go of a lost connection on a goroutine of its own.
			require.Eventually(t, func() bool { return r.InUse() == 0 }, 10*time.Second, time.Millisecond, "connections in use")
		})
	}
}
