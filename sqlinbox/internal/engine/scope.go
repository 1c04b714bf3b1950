package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Scope is what a handler's context knows of its transaction. It stays in contexts that outlive the transaction and
// says itself when it is over.
type Scope struct {
	// Handle is the driver's transaction, a pgx.Tx or a *sql.Tx.
	Handle any

	used atomic.Bool
	over atomic.Bool
	doom atomic.Pointer[error]
}

// Doom makes sure that the transaction is rolled back with err, whatever the handler returns. The first one counts.
func (s *Scope) Doom(err error) { s.doom.CompareAndSwap(nil, &err) }

func (s *Scope) doomed() error {
	if err := s.doom.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *Scope) close() { s.over.Store(true) }

// Over tells that the handler has returned.
func (s *Scope) Over() bool { return s.over.Load() }

type scopeKey struct{}

func withScope(ctx context.Context, s *Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// TxFromContext gives the handler's transaction as a T, or an inbox.ErrNoTx that tells why there is none.
func TxFromContext[T any](ctx context.Context) (T, error) {
	var none T
	s, _ := ctx.Value(scopeKey{}).(*Scope)
	switch {
	case s == nil:
		return none, inbox.ErrNoTx
	case s.over.Load():
		return none, fmt.Errorf("%w (the transaction that this context carried is over)", inbox.ErrNoTx)
	}
	tx, ok := s.Handle.(T)
	if !ok {
		return none, fmt.Errorf("%w (the open transaction is a %T: it belongs to another store)", inbox.ErrNoTx, s.Handle)
	}
	s.used.Store(true)
	return tx, nil
}
