package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestIsPermanentAndIsTransient(t *testing.T) {
	t.Parallel()
	own, database := errors.New("declined"), errors.New("pq: out of disk")
	for _, kind := range []struct {
		name                 string
		errors               []error
		permanent, transient bool
	}{
		{"permanent", []error{
			inbox.ErrNoMessageID, inbox.ErrMessageIDTooLong, inbox.ErrMessageIDRefused, inbox.ErrMismatch, inbox.ErrKeyCollision,
			inbox.ErrLate,
		}, true, false},
		{"transient", []error{
			context.Canceled, context.DeadlineExceeded, inbox.ErrInFlight, inbox.ErrNoConsumer, inbox.ErrKeyScheme,
			inbox.ErrNoPartition, inbox.ErrTxManaged, inbox.ErrTxAborted, inbox.ErrTxBusy, inbox.ErrNested, inbox.ErrNoPublishTopic,
			inbox.ErrNoTx, inbox.ErrSchema,
			inbox.ErrReadOnly, inbox.ErrSerialization, inbox.ErrUnavailable, inbox.ErrCommitUnknown,
		}, false, true},
		{"neither", []error{own, database, nil}, false, false},
	} {
		for _, err := range kind.errors {
			t.Run(fmt.Sprintf("%s/%v", kind.name, err), func(t *testing.T) {
				t.Parallel()
				forms := []error{err}
				if err != nil {
					forms = append(forms,
						fmt.Errorf("query: %w", err),
						fmt.Errorf("%w: %w", err, database),
						fmt.Errorf("%w; %w", own, err), // a handler that failed too comes first
						errors.Join(own, err),
						&inbox.Error{Phase: inbox.PhaseHandle, Err: fmt.Errorf("a: %w", errors.Join(own, fmt.Errorf("b: %w", err)))},
					)
				}
				for _, form := range forms {
					require.Equal(t, kind.permanent, inbox.IsPermanent(form), "%v", form)
					require.Equal(t, kind.transient, inbox.IsTransient(form), "%v", form)
				}
			})
		}
	}
}

// Every sentinel is on one of the two lists, so that none is left to Retry and the poison queue by oversight.
func TestEverySentinelIsPermanentOrTransient(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	declared, listed := map[string]int{}, map[string]int{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name := spec.Names[0].Name
		switch {
		case strings.HasPrefix(name, "Err"):
			declared[name] = 1
		case name == "permanentErrors" || name == "transientErrors":
			for _, element := range spec.Values[0].(*ast.CompositeLit).Elts {
				if ident, ok := element.(*ast.Ident); ok {
					listed[ident.Name]++
				}
			}
		}
		return true
	})
	require.Greater(t, len(declared), 15)
	require.Equal(t, declared, listed)
}

// A message that is at fault is at fault also when the context ended meanwhile: else it would come again for ever.
func TestAHandlersErrorCanBePermanent(t *testing.T) {
	t.Parallel()
	require.NoError(t, inbox.Permanent(nil))
	cause := errors.New("no such account")
	err := fmt.Errorf("charge: %w", inbox.Permanent(cause))
	require.EqualError(t, err, "charge: no such account")
	require.ErrorIs(t, err, cause)
	require.True(t, inbox.IsPermanent(err))
	require.False(t, inbox.IsTransient(err))
	require.True(t, inbox.IsPermanent(&inbox.Error{Phase: inbox.PhaseHandle, Err: err}))
	require.False(t, inbox.IsPermanent(cause))
}

func TestPermanentWinsOverTransient(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		fmt.Errorf("%w (%w)", inbox.ErrMismatch, context.Canceled),
		fmt.Errorf("%w (%w)", inbox.ErrUnavailable, inbox.ErrLate),
		errors.Join(inbox.ErrInFlight, inbox.ErrNoMessageID),
	} {
		require.True(t, inbox.IsPermanent(err), "%v", err)
		require.False(t, inbox.IsTransient(err), "%v", err)
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	cause := errors.New("ERROR: deadlock detected (SQLSTATE 40P01)")
	for _, tt := range []struct {
		name string
		err  inbox.Error
		want string
	}{
		{"consumer is the handler", inbox.Error{
			Phase: inbox.PhaseClaim, Key: inbox.Key{Consumer: "charge", ID: "42"}, Handler: "charge", Err: cause,
		}, "inbox: claim charge/42: ERROR: deadlock detected (SQLSTATE 40P01)"},
		{"no handler", inbox.Error{
			Phase: inbox.PhaseCommit, Key: inbox.Key{Consumer: "charge", ID: "42"}, Err: cause,
		}, "inbox: commit charge/42: ERROR: deadlock detected (SQLSTATE 40P01)"},
		{"with a source", inbox.Error{
			Phase: inbox.PhaseHandle, Key: inbox.Key{Consumer: "charge", Source: "shop", ID: "42"}, Handler: "charge", Err: cause,
		}, "inbox: handle charge/shop/42: ERROR: deadlock detected (SQLSTATE 40P01)"},
		{"another consumer", inbox.Error{
			Phase: inbox.PhaseClaim, Key: inbox.Key{Consumer: "pay", ID: "42"}, Handler: "charge_kafka", Err: cause,
		}, "inbox: claim pay/42 (handler charge_kafka): ERROR: deadlock detected (SQLSTATE 40P01)"},
		{"no consumer", inbox.Error{
			Phase: inbox.PhaseIdentify, Key: inbox.Key{ID: "42"}, Handler: "charge", Err: inbox.ErrNoConsumer,
		}, "inbox: identify /42 (handler charge): " + inbox.ErrNoConsumer.Error()},
		{"no id", inbox.Error{
			Phase: inbox.PhaseIdentify, Key: inbox.Key{Consumer: "charge"}, Handler: "charge", Err: inbox.ErrNoMessageID,
		}, "inbox: identify charge/: " + inbox.ErrNoMessageID.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.EqualError(t, &tt.err, tt.want)
			require.Equal(t, tt.err.Err, errors.Unwrap(&tt.err))
		})
	}
}

// "…with the handler's name where the consumer does not end in it": a namespace is no reason to say it twice.
func TestErrorTextNamesTheHandlerOnce(t *testing.T) {
	t.Parallel()
	err := &inbox.Error{Phase: inbox.PhaseClaim, Key: inbox.Key{Consumer: "billing/charge", ID: "42"}, Handler: "charge", Err: inbox.ErrInFlight}
	require.EqualError(t, err, "inbox: claim billing/charge/42: "+inbox.ErrInFlight.Error())

	err = &inbox.Error{Phase: inbox.PhaseClaim, Key: inbox.Key{Consumer: "recharge", ID: "42"}, Handler: "charge", Err: inbox.ErrInFlight}
	require.EqualError(t, err, "inbox: claim recharge/42 (handler charge): "+inbox.ErrInFlight.Error(),
		"the consumer only happens to end in the same letters")
}

// Whatever goes wrong, the error names handler, message id, phase and cause, and the cause can be reached.
func TestI3_EveryErrorNamesHandlerIDPhaseAndCause(t *testing.T) {
	t.Parallel()
	ctx := routed(t, "charge", "orders")
	own := errors.New("declined")
	database := errors.New("ERROR: deadlock detected (SQLSTATE 40P01)")
	fail := func(phase inbox.Phase, err error) func(*fakeStore) {
		return func(s *fakeStore) {
			s.answer = func(d inbox.Delivery) (inbox.Result, error) {
				return inbox.Result{}, &inbox.Error{Phase: phase, Key: d.Key, Handler: d.Handler, Err: err}
			}
		}
	}
	for _, tt := range []struct {
		name   string
		config inbox.Config
		store  func(*fakeStore)
		work   error
		phase  inbox.Phase
		causes []error
	}{
		{"identity", inbox.Config{Identity: func(*message.Message) (string, string, error) {
			return "", "42", own
		}}, nil, nil, inbox.PhaseIdentify, []error{inbox.ErrMessageIDRefused, own}},
		{
			"claim",
			inbox.Config{},
			fail(inbox.PhaseClaim, fmt.Errorf("%w: %w", inbox.ErrSerialization, database)), nil,
			inbox.PhaseClaim,
			[]error{inbox.ErrSerialization, database},
		},
		{"handler", inbox.Config{}, nil, fmt.Errorf("pay: %w", own), inbox.PhaseHandle, []error{own}},
		{
			"commit",
			inbox.Config{},
			fail(inbox.PhaseCommit, fmt.Errorf("%w: %w", inbox.ErrCommitUnknown, database)), nil,
			inbox.PhaseCommit,
			[]error{inbox.ErrCommitUnknown, database},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := newFakeStore()
			if tt.store != nil {
				tt.store(store)
			}
			_, err := mustNew(t, store, tt.config).Middleware(func(*message.Message) ([]*message.Message, error) {
				return nil, tt.work
			})(message.NewMessageWithContext(ctx, "42", nil))
			requirePhase(t, tt.phase, err)
			require.True(t, strings.HasPrefix(err.Error(), "inbox: "+string(tt.phase)+" charge/42: "), err.Error())
			for _, cause := range tt.causes {
				require.ErrorIs(t, err, cause)
				require.ErrorContains(t, err, cause.Error())
			}
		})
	}
}

func TestConfigErrorText(t *testing.T) {
	t.Parallel()
	require.EqualError(t, &inbox.ConfigError{Field: "sqlinbox.Config.TablePrefix", Value: "a b", Reason: "is no name"},
		`inbox: bad sqlinbox.Config.TablePrefix ("a b"): is no name`)
	require.EqualError(t, &inbox.ConfigError{Field: "store", Value: nil, Reason: "must not be nil"},
		`inbox: bad store (<nil>): must not be nil`)
}

// A time reads as a person wrote it, not as nanoseconds.
func TestConfigErrorTextOfATime(t *testing.T) {
	t.Parallel()
	require.EqualError(t, &inbox.ConfigError{Field: "inbox.Config.Grace", Value: -2 * time.Second, Reason: "must not be negative"},
		`inbox: bad inbox.Config.Grace (-2s): must not be negative`)
}
