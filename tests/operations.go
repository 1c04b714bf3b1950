package tests

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
)

// operations are the cases about business keys (F), and about what holds for operation ids as for message ids.
func (s *suite) operations() []testCase {
	return slices.Concat([]testCase{
		{"F1_OneOperationInFiveMessages", s.f1},
		{"F1_ValueOfDoInFiveMessages", s.f1Do},
		{"F1_ValueSpoiltByTheHandler", s.f1Spoilt},
		{"F1_SharedByHandlersAndACall", s.f1Shared},
		{"F1_ScopesAreKeptApart", s.f1Scopes},
		{"F2_OtherAmount", s.f2},
		{"F2_OtherAmountInFlight", s.f2InFlight},
		{"F2_OtherAmountOfACall", s.f2Alone},
		{"F3_RetriesFromAColdProcess", s.f3},
		{"F4_SecondOperationFails", s.f4},
	}, s.operationFlights(), s.operationCrashes(), s.operationCalls(), s.operationNames(), s.operationLayers())
}

// operationTasks are what the children of these cases do.
func (s *suite) operationTasks() map[string]taskFunc {
	return map[string]taskFunc{
		coldTask:             s.retryCold,
		operationDieTask:     s.operateAndDie,
		operationStormTask:   s.operationStormChild,
		operationHoldingTask: s.holdOperation,
	}
}

// opRig is a rig with business keys on its store.
type opRig struct {
	*rig
	keys *businesskey.Keys
	// claims tells that operations are claimed together with their messages.
	claims bool
}

// opRig opens an environment with both layers on it.
func (s *suite) opRig(t testing.TB, o Options, keys businesskey.Config, claims bool) *opRig {
	t.Helper()
	return newOpRig(t, s.open(t, o), inbox.Config{}, keys, claims)
}

func newOpRig(t testing.TB, env *Env, config inbox.Config, keys businesskey.Config, claims bool) *opRig {
	t.Helper()
	store, ok := env.Store.(inbox.OperationStore)
	require.True(t, ok, "%T is no inbox.OperationStore", env.Store)
	k, err := businesskey.New(store, keys)
	require.NoError(t, err)
	if claims {
		config.Claims = k.Claims
	}
	return &opRig{rig: newRig(t, env, config), keys: k, claims: claims}
}

// opBeside is the rig in another process, as far as that matters, see beside. It tells the rig's observer and logger.
func (s *suite) opBeside(t testing.TB, r *opRig, o Options) *opRig {
	t.Helper()
	o.Space, o.Config = r.Space, r.Config
	other := newOpRig(t, s.open(t, o), inbox.Config{Logger: r.logs}, businesskey.Config{}, r.claims)
	config := inbox.Config{Consumer: onlyConsumer, Logger: r.logs, Observer: r.events.add}
	if r.claims {
		config.Claims = other.keys.Claims
	}
	var err error
	other.Inbox, err = inbox.New(other.Store, config)
	require.NoError(t, err)
	other.logs = r.logs
	return other
}

// bothWays runs a case with the operation claimed by the middleware, and together with its message.
func bothWays(t *testing.T, run func(t *testing.T, claims bool)) {
	t.Helper()
	t.Run("ClaimedInTheHandler", func(t *testing.T) { run(t, false) })
	t.Run("ClaimedWithTheMessage", func(t *testing.T) { run(t, true) })
}

// inAllPlaces runs a case both ways, and with the second message in the process of the first and in another one.
func (s *suite) inAllPlaces(t *testing.T, o Options, run func(t *testing.T, r, second *opRig)) {
	t.Helper()
	bothWays(t, func(t *testing.T, claims bool) {
		t.Run("InThisProcess", func(t *testing.T) {
			r := s.opRig(t, o, businesskey.Config{}, claims)
			run(t, r, r)
		})
		t.Run("InAnotherProcess", func(t *testing.T) {
			r := s.opRig(t, o, businesskey.Config{}, claims)
			run(t, r, s.opBeside(t, r, o))
		})
	})
}

// command is a message of its own that asks for the operation.
func command(operation, payload string) *message.Message {
	msg := newMessage(payload)
	msg.Metadata.Set(businesskey.OperationIDMetadataKey, operation)
	return msg
}

// operate passes a message through both layers.
func (r *opRig) operate(msg *message.Message, handler message.HandlerFunc) ([]*message.Message, error) {
	return r.Middleware(r.keys.Middleware(handler))(msg)
}

func (r *opRig) startOperation(msg *message.Message, handler message.HandlerFunc) *inHand {
	return r.start(msg, r.keys.Middleware(handler))
}

// operationsKept counts the operations that are remembered.
func (e *Env) operationsKept(t testing.TB) int {
	t.Helper()
	return e.scalar(t, "SELECT count(*) FROM "+e.Operations)
}

// last is what the observer was told last.
func (e *events) last(t testing.TB) inbox.Event {
	t.Helper()
	all := e.all()
	require.NotEmpty(t, all)
	return all[len(all)-1]
}

// mismatched asserts that a message was refused for the content of its operation, and left nothing behind.
func (r *opRig) mismatched(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, inbox.ErrMismatch)
	require.True(t, inbox.IsPermanent(err))
	require.False(t, inbox.IsTransient(err))
	var operation *inbox.OperationError
	require.ErrorAs(t, err, &operation)
	require.Equal(t, consumer, operation.Scope)
	told := r.events.last(t)
	require.Equal(t, inbox.OutcomeMismatch, told.Outcome)
	require.Equal(t, inbox.LayerOperation, told.Layer)
	require.Equal(t, err, told.Err)
}

func (s *suite) f1(t *testing.T) {
	s.inAllPlaces(t, Options{}, func(t *testing.T, r, second *opRig) {
		first := command("pay-1", "pay 10")
		want, err := r.operate(first.Copy(), r.producing("pay", 2))
		require.NoError(t, err)
		require.Len(t, want, 2)
		require.Equal(t, 1, r.recorded(t))
		for i := range 4 {
			again := command("pay-1", "pay 10")
			got, err := second.operate(again, second.producing("pay", 2))
			require.NoError(t, err)
			require.Equal(t, uuids(want), uuids(got), "the recorded messages")
			require.Equal(t, want[1].Payload, got[1].Payload)
			told := r.events.last(t)
			require.Equal(t, inbox.OutcomeDuplicate, told.Outcome)
			require.Equal(t, inbox.LayerOperation, told.Layer)
			require.False(t, told.TxUnused)
			require.Equal(t, i+2, r.Rows(t), "each message has a memory row of its own")
			require.Equal(t, 1, r.recorded(t), "what the operation produced is recorded once")

			_, err = second.operate(again.Copy(), second.producing("pay", 2))
			require.NoError(t, err)
			require.Equal(t, inbox.LayerMessage, r.events.last(t).Layer, "a redelivery is a duplicate of its message")
		}
		require.Equal(t, 1, r.Count(t, "pay"))
		require.Equal(t, 1, r.operationsKept(t))
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 8})
		r.requireIdle(t)
	})
}

// paying is a handler that pays by Do and gives the receipt to got.
func (r *opRig) paying(operation businesskey.Operation, effect, receipt string, got *[]byte) message.HandlerFunc {
	return func(msg *message.Message) (_ []*message.Message, err error) {
		*got, err = r.keys.Do(msg.Context(), operation, r.pay(effect, receipt))
		return nil, err
	}
}

// pay is the work of an operation.
func (e *Env) pay(effect, receipt string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) { return []byte(receipt), e.Write(ctx, effect) }
}

func (s *suite) f1Do(t *testing.T) {
	s.inBothPlaces(t, Options{}, inbox.Config{}, func(t *testing.T, plain, elsewhere *rig) {
		for i, r := range []*rig{plain, elsewhere, elsewhere, plain, elsewhere} {
			keys, err := businesskey.New(r.Store.(inbox.OperationStore), businesskey.Config{})
			require.NoError(t, err)
			or := &opRig{rig: r, keys: keys}
			var got []byte
			receipt := "receipt " + strconv.Itoa(i)
			handler := or.paying(businesskey.Operation{ID: "pay-1", Content: []byte("10")}, "pay", receipt, &got)
			require.NoError(t, or.handle(newMessage("pay 10"), handler))
			require.Equal(t, "receipt 0", string(got), "the recorded value")
			require.Equal(t, inbox.LayerMessage, plain.events.last(t).Layer, "the handler was called: the message is processed")
		}
		require.Equal(t, 1, plain.Count(t, "pay"))
		require.Equal(t, 5, plain.Rows(t))
		require.Equal(t, 1, plain.operationsKept(t))
		plain.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 5})
	})
}

// f1Spoilt has a handler change what it got from Do: what is recorded is what the work gave.
func (s *suite) f1Spoilt(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{}, false)
	for range 2 {
		require.NoError(t, r.handle(newMessage("pay 10"), func(msg *message.Message) ([]*message.Message, error) {
			for range 2 {
				var got []byte
				if _, err := r.paying(businesskey.Operation{ID: "pay-1"}, "pay", "receipt", &got)(msg); err != nil {
					return nil, err
				}
				require.Equal(t, "receipt", string(got))
				copy(got, "xxx")
			}
			return nil, nil
		}))
	}
	require.Equal(t, 1, r.Count(t, "pay"))
}

// f1Shared has a card charged by two handlers and by a call outside any message, under one scope.
func (s *suite) f1Shared(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		shared := businesskey.Config{
			Scope:       func(*message.Message) string { return "cards" },
			Fingerprint: func(*message.Message) []byte { return []byte("10") },
		}
		r := s.opRig(t, Options{}, shared, claims)
		for _, name := range []string{"charge", "subscribe"} {
			_, err := r.As(name)(r.keys.Middleware(r.writes("pay")))(command("pay-1", "of "+name))
			require.NoError(t, err)
		}
		_, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: "cards", ID: "pay-1", Content: []byte("10")}, r.pay("pay", ""))
		require.NoError(t, err)
		_, err = r.keys.Do(t.Context(), businesskey.Operation{Scope: "cards", ID: "pay-1", Content: []byte("20")}, r.pay("pay", ""))
		require.ErrorIs(t, err, inbox.ErrMismatch)
		require.Equal(t, 1, r.Count(t, "pay"))
		require.Equal(t, 1, r.operationsKept(t))
	})
}

// f1Scopes has one id in several scopes.
func (s *suite) f1Scopes(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{}, businesskey.Config{}, claims)
		for range 2 {
			for _, name := range []string{"charge", "mail"} {
				_, err := r.As(name)(r.keys.Middleware(r.writes(name)))(command("1", "order 1"))
				require.NoError(t, err)
			}
			_, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, r.pay("http", ""))
			require.NoError(t, err)
		}
		for _, name := range []string{"charge", "mail", "http"} {
			require.Equal(t, 1, r.Count(t, name))
		}
		require.Equal(t, 3, r.operationsKept(t))
	})
}

func (s *suite) f2(t *testing.T) {
	s.inAllPlaces(t, Options{}, func(t *testing.T, r, second *opRig) {
		want, err := r.operate(command("pay-1", "pay 10"), r.producing("pay", 1))
		require.NoError(t, err)
		for range 2 {
			_, err = second.operate(command("pay-1", "pay 20"), second.writes("wrong"))
			r.mismatched(t, err)
			got, err := second.operate(command("pay-1", "pay 10"), second.writes("wrong"))
			require.NoError(t, err, "just after a mismatch")
			require.Equal(t, uuids(want), uuids(got), "the right retry gets the recorded outcome")
		}
		require.Equal(t, 1, r.Total(t))
		require.Equal(t, 3, r.Rows(t), "a refused message is not remembered")
		require.Equal(t, 1, r.operationsKept(t))
	})
}

func (s *suite) f2InFlight(t *testing.T) {
	s.inAllPlaces(t, Options{}, func(t *testing.T, r, second *opRig) {
		stop := newGate(t)
		first := r.startOperation(command("pay-1", "pay 10"), stop.after(r.writes("pay")))
		stop.wait(t)
		wrong := second.startOperation(command("pay-1", "pay 20"), second.writes("wrong"))
		right := second.startOperation(command("pay-1", "pay 10"), second.writes("pay"))
		s.meet(t, r.rig, second.rig, wrong)
		require.False(t, wrong.ended(), "nothing is known of the content while the operation is in flight")
		stop.open()
		require.NoError(t, first.end(t))
		require.NoError(t, right.end(t))
		err := wrong.end(t)
		require.ErrorIs(t, err, inbox.ErrMismatch)
		require.True(t, inbox.IsPermanent(err))
		_, err = second.operate(command("pay-1", "pay 10"), second.writes("pay"))
		require.NoError(t, err, "just after a mismatch")
		require.Equal(t, 1, r.Total(t))
		r.told(t, map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeMismatch: 1, inbox.OutcomeDuplicate: 2})
		require.Equal(t, 1, r.operationsKept(t))
	})
}

// f2Alone does the same outside any message.
func (s *suite) f2Alone(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{}, false)
	elsewhere := s.opBeside(t, r, Options{})
	do := func(r *opRig, amount string) ([]byte, error) {
		return r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1", Content: []byte(amount)}, r.pay("pay", "paid "+amount))
	}
	for _, r := range []*opRig{r, elsewhere, r} {
		got, err := do(r, "10")
		require.NoError(t, err)
		require.Equal(t, "paid 10", string(got))
		got, err = do(r, "20")
		require.Nil(t, got)
		require.ErrorIs(t, err, inbox.ErrMismatch)
		require.True(t, inbox.IsPermanent(err))
		var operation *inbox.OperationError
		require.ErrorAs(t, err, &operation)
		require.Equal(t, "http", operation.Scope)
		require.Equal(t, "1", operation.ID)
	}
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 0, r.Rows(t))
}

const coldTask = "retry an operation"

// f3 has another process repeat an operation three times, by message and by call.
func (s *suite) f3(t *testing.T) {
	bothWays(t, func(t *testing.T, claims bool) {
		r := s.opRig(t, Options{}, businesskey.Config{}, claims)
		produced, err := r.operate(command("pay-1", "pay 10"), r.producing("pay", 1))
		require.NoError(t, err)
		receipt, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, r.pay("pay by call", "receipt 1"))
		require.NoError(t, err)
		child := s.startChild(t, r.Env, task{Name: coldTask, Args: map[string]string{
			"claims": strconv.FormatBool(claims), "produced": produced[0].UUID, "receipt": string(receipt),
		}}, "")
		require.NoError(t, child.Wait(t.Context()), "%s", child.Output())
		require.Equal(t, 1, r.Count(t, "pay"))
		require.Equal(t, 1, r.Count(t, "pay by call"))
		require.Equal(t, 2, r.Total(t))
		require.Equal(t, 4, r.Rows(t))
	})
}

// retryCold is the other process.
func (s *suite) retryCold(t *testing.T, this task) {
	r := s.opRig(t, Options{Space: this.Space, DSN: this.DSN}, businesskey.Config{}, this.Args["claims"] == "true")
	for range 3 {
		produced, err := r.operate(command("pay-1", "pay 10"), r.writes("again"))
		require.NoError(t, err)
		require.Equal(t, []string{this.Args["produced"]}, uuids(produced))
		receipt, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, r.pay("again", "another"))
		require.NoError(t, err)
		require.Equal(t, this.Args["receipt"], string(receipt))
	}
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeDuplicate: 3})
}

// f4 has a second operation fail in several ways; whatever the handler makes of that, neither is remembered.
func (s *suite) f4(t *testing.T) {
	fails := func(context.Context) ([]byte, error) { return nil, errHandler }
	panics := func(context.Context) ([]byte, error) { panic("card declined") }
	exits := func(context.Context) ([]byte, error) { runtime.Goexit(); return nil, nil }
	large := func(context.Context) ([]byte, error) { return make([]byte, businesskey.DefaultMaxResult+1), nil }
	type work = func(ctx context.Context) ([]byte, error)
	second := func(r *opRig, msg *message.Message, fn work) error {
		_, err := r.keys.Do(msg.Context(), businesskey.Operation{ID: "second"}, fn)
		return err
	}
	recovered := func(f func()) {
		defer func() { _ = recover() }()
		f()
	}
	for _, c := range []struct {
		name string
		is   error // of what the middleware returns
		rest func(r *opRig, msg *message.Message) error
	}{
		{"Returned", errHandler, func(r *opRig, msg *message.Message) error { return second(r, msg, fails) }},
		{"Swallowed", errHandler, func(r *opRig, msg *message.Message) error {
			_ = second(r, msg, fails)
			return nil
		}},
		{"SwallowedAndAnother", errHandler, func(r *opRig, msg *message.Message) error {
			_ = second(r, msg, fails)
			return second(r, msg, r.pay("second", "")) // refused: the transaction is doomed
		}},
		{"PanicRecovered", nil, func(r *opRig, msg *message.Message) error {
			recovered(func() { _ = second(r, msg, panics) })
			return nil
		}},
		{"Goexit", nil, func(r *opRig, msg *message.Message) error {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = second(r, msg, exits)
			}()
			<-done
			return nil
		}},
		{"MismatchSwallowed", inbox.ErrMismatch, func(r *opRig, msg *message.Message) error {
			_, _ = r.keys.Do(msg.Context(), businesskey.Operation{ID: "first", Content: []byte("20")}, r.pay("wrong", ""))
			return nil
		}},
		{"ResultTooLargeSwallowed", inbox.ErrResultTooLarge, func(r *opRig, msg *message.Message) error {
			_ = second(r, msg, large)
			return nil
		}},
		{"NoIDSwallowed", inbox.ErrNoOperationID, func(r *opRig, msg *message.Message) error {
			_, _ = r.keys.Do(msg.Context(), businesskey.Operation{}, r.pay("wrong", ""))
			return nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.opRig(t, Options{PoolSize: 1}, businesskey.Config{}, false)
			msg := newMessage("pay 10")
			mended := false
			handler := func(msg *message.Message) ([]*message.Message, error) {
				if _, err := r.keys.Do(msg.Context(), businesskey.Operation{ID: "first"}, r.pay("pay", "")); err != nil {
					return nil, err
				}
				if mended {
					return nil, second(r, msg, r.pay("second", ""))
				}
				return nil, c.rest(r, msg)
			}
			err := r.handleWithin(t, msg.Copy(), handler)
			require.Error(t, err)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			var operation *inbox.OperationError
			require.ErrorAs(t, err, &operation)
			require.Equal(t, inbox.LayerOperation, r.events.last(t).Layer)
			require.Equal(t, 0, r.operationsKept(t), "neither operation is remembered")
			r.requireNothing(t)

			mended = true
			require.NoError(t, r.handleWithin(t, msg.Copy(), handler))
			require.Equal(t, 2, r.operationsKept(t))
			require.Equal(t, 1, r.Count(t, "second"))
			r.requireOnce(t)
		})
	}
	t.Run("InsideTheMiddleware", func(t *testing.T) {
		bothWays(t, func(t *testing.T, claims bool) {
			r := s.opRig(t, Options{}, businesskey.Config{}, claims)
			_, err := r.operate(command("pay-1", "pay 10"), func(msg *message.Message) ([]*message.Message, error) {
				_ = second(r, msg, fails)
				return nil, r.Write(msg.Context(), "pay")
			})
			require.ErrorIs(t, err, errHandler)
			require.Equal(t, 0, r.operationsKept(t))
			r.requireNothing(t)
			_, err = r.operate(command("pay-1", "pay 10"), func(*message.Message) ([]*message.Message, error) { return nil, errors.New("declined") })
			require.ErrorContains(t, err, "declined")
			require.Equal(t, 0, r.operationsKept(t))
			r.requireNothing(t)
		})
	})
}
