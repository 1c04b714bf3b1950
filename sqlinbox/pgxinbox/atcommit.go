package pgxinbox

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// ExecAtCommit keeps a statement whose result the handler does not need, and sends it together with COMMIT: a handler
// whose last write travels so costs one round trip less than a transaction written by hand.
//
// The statements run in the order of the calls, after everything that the handler executed, and are not undone by
// rolling back to a savepoint. If one fails, the commit fails: nothing is committed, and the middleware returns the
// error. The arguments must not be changed after the call. Outside a handler behind the middleware the error is
// inbox.ErrNoTx.
func ExecAtCommit(ctx context.Context, sql string, args ...any) error {
	tx, err := engine.TxFromContext[pgx.Tx](ctx)
	if err != nil {
		return err
	}
	own, ok := tx.(handlerTx)
	if !ok {
		return fmt.Errorf("%w (the open transaction is a %T)", inbox.ErrNoTx, tx)
	}
	own.t.atCommit.add(sql, args...)
	return nil
}

// atCommit collects what goes out with COMMIT; handlers may call from several goroutines.
type atCommit struct {
	mu    sync.Mutex
	batch *pgx.Batch
}

func (a *atCommit) add(sql string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.batch == nil {
		a.batch = &pgx.Batch{}
	}
	a.batch.Queue(sql, args...)
}

// take gives the statements, nil for none.
func (a *atCommit) take() *pgx.Batch {
	a.mu.Lock()
	defer a.mu.Unlock()
	batch := a.batch
	a.batch = nil
	return batch
}
