package engine

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

type tx struct{ name string }

type otherTx struct{}

func TestTxFromContext(t *testing.T) {
	t.Parallel()
	handle := &tx{"mine"}
	scope := &Scope{Handle: handle}
	ctx := withScope(t.Context(), scope)
	require.False(t, scope.used.Load())

	got, err := TxFromContext[*tx](ctx)
	require.NoError(t, err)
	require.Same(t, handle, got)
	require.True(t, scope.used.Load())

	derived, cancel := context.WithCancel(ctx)
	cancel()
	got, err = TxFromContext[*tx](derived)
	require.NoError(t, err, "a cancelled context still has its transaction")
	require.Same(t, handle, got)
}

func TestTxFromContextWithoutOne(t *testing.T) {
	t.Parallel()
	over := &Scope{Handle: &tx{}}
	over.close()
	other := &Scope{Handle: &otherTx{}}
	for name, tt := range map[string]struct {
		ctx   context.Context
		scope *Scope
		text  string
	}{
		"plain context": {t.Context(), nil, "msg.Context()"},
		"over":          {withScope(t.Context(), over), over, "the transaction that this context carried is over"},
		"another store": {withScope(t.Context(), other), other, "*engine.otherTx: it belongs to another store"},
		"no handle":     {withScope(t.Context(), &Scope{}), nil, "another store"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := TxFromContext[*tx](tt.ctx)
			require.ErrorIs(t, err, inbox.ErrNoTx)
			require.ErrorContains(t, err, tt.text)
			require.Nil(t, got)
			if tt.scope != nil {
				require.False(t, tt.scope.used.Load(), "who got nothing has used nothing")
			}
		})
	}
}

// The inner scope counts: a context that outlived one transaction may carry the next one.
func TestTxFromContextOfALaterScope(t *testing.T) {
	t.Parallel()
	first, second := &Scope{Handle: &tx{"1"}}, &Scope{Handle: &tx{"2"}}
	ctx := withScope(t.Context(), first)
	first.close()
	got, err := TxFromContext[*tx](withScope(ctx, second))
	require.NoError(t, err)
	require.Equal(t, "2", got.name)
}

func TestScopeKeepsTheFirstDoom(t *testing.T) {
	t.Parallel()
	scope := &Scope{}
	require.NoError(t, scope.doomed())
	require.False(t, scope.Over())
	first := errors.New("first")
	scope.Doom(first)
	scope.Doom(errors.New("second"))
	require.Equal(t, first, scope.doomed())
	scope.close()
	require.True(t, scope.Over())
}

// A handler may use its transaction's scope from several goroutines.
func TestScopeRaces(t *testing.T) {
	t.Parallel()
	scope := &Scope{Handle: &tx{}}
	ctx := withScope(t.Context(), scope)
	own := errors.New("mine")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, _ = TxFromContext[*tx](ctx)
			scope.Doom(own)
			_ = scope.Over()
		})
	}
	scope.close()
	wg.Wait()
	require.Equal(t, own, scope.doomed())
}
