package tests

import (
	"context"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
)

// operationCalls are the cases about operations outside any message.
func (s *suite) operationCalls() []testCase {
	return []testCase{
		{"F1_CallOutsideAnyMessage", s.callAlone},
		{"F1_CallWithJSON", s.callJSON},
		{"F1_ResultTooLarge", s.callTooLarge},
		{"F1_MiddlewareWithoutAnInbox", s.middlewareAlone},
		{"F4_CallFails", s.callFails},
		{"F4_DoAllIsAtomic", s.doAllAtomic},
	}
}

func (s *suite) callAlone(t *testing.T) {
	r := s.opRig(t, Options{PoolSize: 1}, businesskey.Config{}, false)
	var kept context.Context
	for range 3 {
		got, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, func(ctx context.Context) ([]byte, error) {
			kept = ctx
			require.Equal(t, 1, r.InUse())
			return []byte{0, 0xff, '\''}, r.Write(ctx, "pay")
		})
		require.NoError(t, err)
		require.Equal(t, []byte{0, 0xff, '\''}, got)
		require.Equal(t, 0, r.InUse())
	}
	require.ErrorIs(t, r.Write(kept, "late"), inbox.ErrNoTx, "the transaction is over")
	_, err := r.keys.Do(kept, businesskey.Operation{Scope: "http", ID: "2"}, r.pay("second", ""))
	require.NoError(t, err, "a context that outlives its operation is any other context")
	require.Equal(t, 1, r.Count(t, "pay"))
	require.Equal(t, 1, r.Count(t, "second"))
	require.Equal(t, 0, r.Rows(t))
	require.Equal(t, 2, r.operationsKept(t))

	_, err = r.keys.Do(t.Context(), businesskey.Operation{ID: "1"}, r.pay("wrong", ""))
	require.ErrorIs(t, err, inbox.ErrNoScope)
	require.True(t, inbox.IsTransient(err), "the program is put together wrongly")
	_, err = r.keys.Do(t.Context(), businesskey.Operation{Scope: "http"}, r.pay("wrong", ""))
	require.ErrorIs(t, err, inbox.ErrNoOperationID)
	require.True(t, inbox.IsPermanent(err))
	require.Equal(t, 2, r.Total(t))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.keys.Do(ctx, businesskey.Operation{Scope: "http", ID: "3"}, r.pay("wrong", ""))
	require.ErrorIs(t, err, context.Canceled)
	r.requireIdle(t)
}

func (s *suite) callJSON(t *testing.T) {
	type receipt struct {
		Number int    `json:"number"`
		Text   string `json:"text"`
	}
	r := s.opRig(t, Options{}, businesskey.Config{}, false)
	calls := 0
	do := func(ctx context.Context) (receipt, error) {
		return businesskey.DoJSON(ctx, r.keys, businesskey.Operation{Scope: "http", ID: "1"}, func(ctx context.Context) (receipt, error) {
			calls++
			return receipt{calls, "a\x00b ✓"}, r.Write(ctx, "pay")
		})
	}
	for range 2 {
		got, err := do(t.Context())
		require.NoError(t, err)
		require.Equal(t, receipt{1, "a\x00b ✓"}, got)
	}
	require.NoError(t, r.handle(newMessage("pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		got, err := do(msg.Context())
		require.Equal(t, receipt{1, "a\x00b ✓"}, got)
		return nil, err
	}))
	require.Equal(t, 1, r.Count(t, "pay"))
	_, err := businesskey.DoJSON(t.Context(), r.keys, businesskey.Operation{Scope: "http", ID: "1"}, func(context.Context) (int, error) { return 1, nil })
	var operation *inbox.OperationError
	require.ErrorAs(t, err, &operation, "a recorded result of another type")
	_, err = businesskey.DoJSON(t.Context(), r.keys, businesskey.Operation{Scope: "http", ID: "2"}, func(context.Context) (func(), error) { return func() {}, nil })
	require.ErrorAs(t, err, &operation, "a result that cannot be written")
	require.Equal(t, 1, r.operationsKept(t))
}

func (s *suite) callTooLarge(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{MaxResult: 10}, false)
	do := func(result string) ([]byte, error) {
		return r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, r.pay("pay", result))
	}
	_, err := do("12345678901")
	require.ErrorIs(t, err, inbox.ErrResultTooLarge)
	require.True(t, inbox.IsPermanent(err))
	require.Equal(t, 0, r.Total(t), "nothing of it is kept")
	require.Equal(t, 0, r.operationsKept(t))
	got, err := do("1234567890")
	require.NoError(t, err)
	require.Equal(t, "1234567890", string(got))
	require.Equal(t, 1, r.Total(t))

	big := s.opRig(t, Options{}, businesskey.Config{}, false)
	most := noise(businesskey.DefaultMaxResult, "most")
	for range 2 {
		got, err := big.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, big.pay("pay", most))
		require.NoError(t, err)
		require.Equal(t, most, string(got), "the largest result comes back as it is")
	}
}

// middlewareAlone has the middleware on a handler without an inbox: each operation has a transaction of its own.
func (s *suite) middlewareAlone(t *testing.T) {
	r := s.opRig(t, Options{}, businesskey.Config{Scope: func(*message.Message) string { return consumer }}, false)
	handle := r.keys.Middleware(r.producing("pay", 2))
	want, err := handle(command("pay-1", "pay 10"))
	require.NoError(t, err)
	require.Len(t, want, 2)
	for range 2 {
		got, err := handle(command("pay-1", "pay 10"))
		require.NoError(t, err)
		require.Equal(t, uuids(want), uuids(got))
	}
	_, err = handle(command("pay-1", "pay 20"))
	require.ErrorIs(t, err, inbox.ErrMismatch)
	_, err = handle(newMessage("pay 10"))
	require.ErrorIs(t, err, inbox.ErrNoOperationID)
	require.Equal(t, 1, r.Total(t))
	require.Equal(t, 0, r.Rows(t))

	byName := s.opRig(t, Options{}, businesskey.Config{}, false)
	for _, handler := range []string{"charge", "mail", "charge"} {
		_, err := byName.keys.Middleware(byName.writes(handler))(inHandler(command("1", ""), handler, ""))
		require.NoError(t, err)
	}
	require.Equal(t, 1, byName.Count(t, "charge"))
	require.Equal(t, 1, byName.Count(t, "mail"))
	_, err = byName.keys.Middleware(byName.writes("wrong"))(command("1", ""))
	require.ErrorIs(t, err, inbox.ErrNoScope)
}

func (s *suite) callFails(t *testing.T) {
	r := s.opRig(t, Options{PoolSize: 1}, businesskey.Config{}, false)
	do := func(end func() error) error {
		_, err := r.keys.Do(context.Background(), businesskey.Operation{Scope: "http", ID: "1"}, func(ctx context.Context) ([]byte, error) {
			if err := r.Write(ctx, "pay"); err != nil {
				return nil, err
			}
			return nil, end()
		})
		return err
	}
	nothing := func() {
		t.Helper()
		require.Equal(t, 0, r.operationsKept(t))
		r.requireNothing(t)
	}
	err := do(func() error { return errHandler })
	require.ErrorIs(t, err, errHandler)
	var named *inbox.Error
	require.NotErrorAs(t, err, &named, "there is no message")
	nothing()
	require.PanicsWithValue(t, "declined", func() { _ = do(func() error { panic("declined") }) }, "the panic goes on")
	nothing()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = do(func() error { runtime.Goexit(); return nil })
	}()
	<-done
	nothing()
	require.NoError(t, do(func() error { return nil }))
	require.Equal(t, 1, r.Count(t, "pay"))
}

// doAllAtomic has three operations, some of them done before, and the last one that is to be done fails first.
func (s *suite) doAllAtomic(t *testing.T) {
	for name, before := range map[string][]string{"None": nil, "First": {"a"}, "Second": {"b"}, "Third": {"c"}, "Two": {"a", "c"}, "All": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			r := s.opRig(t, Options{PoolSize: 1}, businesskey.Config{}, false)
			const scope = consumer
			for _, id := range before {
				_, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: scope, ID: id}, r.pay(id, "receipt of "+id))
				require.NoError(t, err)
			}
			calls, fail := 0, true
			all := func(ctx context.Context) ([][]byte, error) {
				return r.keys.DoAll(ctx, []businesskey.Operation{{Scope: scope, ID: "a"}, {Scope: scope, ID: "b"}, {Scope: scope, ID: "c"}},
					func(ctx context.Context, op businesskey.Operation) ([]byte, error) {
						if calls++; fail && calls == 3-len(before) {
							return nil, errHandler
						}
						return []byte("receipt of " + op.ID), r.Write(ctx, op.ID)
					})
			}
			if len(before) < 3 {
				got, err := all(t.Context())
				require.ErrorIs(t, err, errHandler)
				require.Nil(t, got)
				require.Equal(t, len(before), r.operationsKept(t), "all of them or none")
				require.Equal(t, len(before), r.Total(t))
			}
			fail = false
			for range 2 {
				got, err := all(t.Context())
				require.NoError(t, err)
				require.Equal(t, [][]byte{[]byte("receipt of a"), []byte("receipt of b"), []byte("receipt of c")}, got)
			}
			require.NoError(t, r.handle(newMessage("in a handler"), func(msg *message.Message) ([]*message.Message, error) {
				got, err := all(msg.Context())
				require.Len(t, got, 3)
				return nil, err
			}))
			for _, id := range []string{"a", "b", "c"} {
				require.Equal(t, 1, r.Count(t, id))
			}
			require.Equal(t, 3, r.operationsKept(t))
			r.requireIdle(t)
		})
	}
	r := s.opRig(t, Options{}, businesskey.Config{}, false)
	got, err := r.keys.DoAll(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Empty(t, got)
	twice := []businesskey.Operation{{Scope: "http", ID: "a"}, {Scope: "http", ID: "b"}, {Scope: "http", ID: "a"}}
	for range 2 { // also when it was done before
		_, err = r.keys.DoAll(t.Context(), twice, func(context.Context, businesskey.Operation) ([]byte, error) { return nil, nil })
		require.ErrorIs(t, err, inbox.ErrNested)
		require.Equal(t, 0, r.Total(t))
		_, err = r.keys.Do(t.Context(), twice[0], func(context.Context) ([]byte, error) { return nil, nil })
		require.NoError(t, err)
	}
	_, err = r.keys.DoAll(t.Context(), []businesskey.Operation{{Scope: "http", ID: "a"}, {Scope: "http"}}, func(context.Context, businesskey.Operation) ([]byte, error) { return nil, nil })
	require.ErrorIs(t, err, inbox.ErrNoOperationID)
	require.Equal(t, 1, r.operationsKept(t))
}
