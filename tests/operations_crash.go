package tests

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/businesskey"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// operationCrashes are the cases about operations whose process or connection dies, or whose transaction is ended.
func (s *suite) operationCrashes() []testCase {
	cases := []testCase{
		{"B1_OperationKilledAfterTheClaim", s.operationKilledAt("claimed", false)},
		{"B1_OperationKilledBeforeTheCommit", s.operationKilledAt("committing", false)},
		{"B1_OperationKilledBeforeTheAck", s.operationKilledAt("unacked", true)},
		{"B10_OperationEndsTheTransaction", s.operationEndsTx},
	}
	if s.Server {
		cases = append(cases,
			testCase{"B2_CommitReplyOfACallLost", s.operationCommitLost(true)},
			testCase{"B2_CommitOfACallLost", s.operationCommitLost(false)},
		)
	}
	return cases
}

const operationDieTask = "operate and die"

// operateAndDie is the child: it handles one message of an operation and passes the points at which it may be killed.
func (s *suite) operateAndDie(t *testing.T, this task) {
	var handled atomic.Bool // the COMMITs before are of no interest
	o := Options{Space: this.Space, DSN: this.DSN, BeforeCommit: func() {
		if handled.Load() {
			inboxtest.Point("committing")
		}
	}}
	r := s.opRig(t, o, businesskey.Config{}, this.Args["claims"] == "true")
	_, err := r.operate(command("pay-1", payloadOfKilled), func(msg *message.Message) ([]*message.Message, error) {
		if err := r.Write(msg.Context(), "pay"); err != nil {
			return nil, err
		}
		inboxtest.Point("claimed")
		handled.Store(true)
		return nil, nil
	})
	require.NoError(t, err)
	inboxtest.Point("unacked")
}

// operationKilledAt kills the child at a point and sends the command again, in a message of its own.
func (s *suite) operationKilledAt(point string, committed bool) func(*testing.T) {
	return func(t *testing.T) {
		bothWays(t, func(t *testing.T, claims bool) {
			r := s.opRig(t, Options{}, businesskey.Config{}, claims)
			child := s.startChild(t, r.Env, task{Name: operationDieTask, Args: map[string]string{"claims": strconv.FormatBool(claims)}}, point)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			require.NoError(t, child.WaitPoint(ctx))
			require.NoError(t, child.Kill())
			for range 2 {
				require.NoError(t, r.handleWithin(t, command("pay-1", payloadOfKilled), r.keys.Middleware(r.writes("pay"))))
			}
			want := map[inbox.Outcome]int{inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 1}
			if committed {
				want = map[inbox.Outcome]int{inbox.OutcomeDuplicate: 2}
			}
			r.told(t, want)
			require.Equal(t, 1, r.Total(t))
			require.Equal(t, 1, r.operationsKept(t))
			r.requireIdle(t)
		})
	}
}

// operationCommitLost loses a call's COMMIT, or the reply to it.
func (s *suite) operationCommitLost(committed bool) func(*testing.T) {
	return func(t *testing.T) {
		env, proxy := s.behindProxy(t, Options{})
		r := newOpRig(t, env, inbox.Config{}, businesskey.Config{}, false)
		if committed {
			proxy.DropCommitReply(1)
		} else {
			proxy.OnCommit(proxy.CutAll)
		}
		pay := func(receipt string) (got []byte, err error) {
			within(t, patience, "a call", func() {
				got, err = r.keys.Do(context.Background(), businesskey.Operation{Scope: "http", ID: "1"}, r.pay("pay", receipt))
			})
			return got, err
		}
		got, err := pay("receipt 1")
		proxy.OnCommit(nil)
		require.Nil(t, got)
		require.ErrorIs(t, err, inbox.ErrCommitUnknown)
		require.True(t, inbox.IsTransient(err))
		var operation *inbox.OperationError
		require.ErrorAs(t, err, &operation)
		want := "receipt 2"
		if committed {
			want = "receipt 1"
		}
		for range 2 {
			got, err = pay("receipt 2")
			require.NoError(t, err, "the repeated call finds out")
			require.Equal(t, want, string(got))
		}
		require.Equal(t, 1, r.Count(t, "pay"))
		require.Equal(t, 1, r.operationsKept(t))
		r.requireIdle(t)
	}
}

// operationEndsTx has the work of an operation end the transaction, which is not its own.
func (s *suite) operationEndsTx(t *testing.T) {
	for name, end := range map[string]func(r *opRig, ctx context.Context) error{
		"Commit":        func(r *opRig, ctx context.Context) error { return r.CommitTx(ctx) },
		"CommitIgnored": func(r *opRig, ctx context.Context) error { _ = r.CommitTx(ctx); return nil },
		"Rollback":      func(r *opRig, ctx context.Context) error { _ = r.RollbackTx(ctx); return nil },
		"RollbackAsSQL": func(r *opRig, ctx context.Context) error { return r.Exec(ctx, "ROLLBACK") },
		"CommitAsSQL":   func(r *opRig, ctx context.Context) error { return r.Exec(ctx, "COMMIT") },
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, claims bool) {
				for _, receipt := range []string{"", "receipt"} {
					r := s.opRig(t, Options{PoolSize: 1}, businesskey.Config{}, claims)
					work := func(ctx context.Context) ([]byte, error) {
						if err := r.Write(ctx, "pay"); err != nil {
							return nil, err
						}
						return []byte(receipt), end(r, ctx)
					}
					_, err := r.keys.Do(t.Context(), businesskey.Operation{Scope: "http", ID: "1"}, work)
					require.ErrorIs(t, err, inbox.ErrTxManaged)
					require.True(t, inbox.IsTransient(err))
					require.Equal(t, r.operationsKept(t), r.Count(t, "pay"), "where the driver lets it commit, the claim is committed, too")
					require.Equal(t, 0, r.InUse())

					before := r.Count(t, "pay")
					_, err = r.operate(command("pay-1", "pay 10"), func(msg *message.Message) ([]*message.Message, error) {
						_, err := work(msg.Context())
						if receipt == "" {
							return nil, err
						}
						return []*message.Message{newMessage("receipt")}, err
					})
					require.ErrorIs(t, err, inbox.ErrTxManaged)
					require.True(t, inbox.IsTransient(err))
					require.Equal(t, r.Rows(t), r.Count(t, "pay")-before)
					require.Equal(t, 0, r.InUse())
				}
			})
		})
	}
}
