package sqlinbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/queue"
)

// storeTogether stores the items in one round trip where the driver is pgx. done is false for other drivers.
func (b *backend) storeTogether(ctx context.Context, items []*queue.Item) (stored []bool, done bool, err error) {
	done, err = b.together(ctx, func(conn *pgx.Conn) (err error) {
		stored, err = pgclaim.Store(ctx, conn, b.queue, b.lanesOf(items), items)
		return err
	})
	return stored, done, err
}

// leaseTogether leases in one round trip where the driver is pgx.
func (b *backend) leaseTogether(ctx context.Context, args ...any) (leased []*engine.QueueRow, done bool, err error) {
	done, err = b.together(ctx, func(conn *pgx.Conn) (err error) {
		leased, err = pgclaim.Lease(ctx, conn, b.queue, func(row pgclaim.Scanner) (*engine.QueueRow, error) { return scanLeased(row) }, args...)
		return err
	})
	return leased, done, err
}

// together calls fn with the connection below database/sql, if it is pgx's.
func (b *backend) together(ctx context.Context, fn func(conn *pgx.Conn) error) (done bool, err error) {
	if b.config.Dialect != PostgreSQL {
		return false, nil
	}
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return true, err
	}
	defer conn.Close() //nolint:errcheck // the connection only goes back
	b.connections.use(conn)
	_ = conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(interface{ Conn() *pgx.Conn })
		if !ok {
			return nil
		}
		done = true
		err = fn(c.Conn())
		return nil
	})
	return done, err
}
