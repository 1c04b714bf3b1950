package sqlinbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/queue"
)

// storeTogether stores the items in one round trip where the driver is pgx: BEGIN, the lock timeout, the locks of the
// lanes, the statement and COMMIT. done is false for other drivers.
func (b *backend) storeTogether(ctx context.Context, items []*queue.Item) (stored []bool, done bool, err error) {
	if b.config.Dialect != PostgreSQL {
		return nil, false, nil
	}
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, true, err
	}
	defer conn.Close() //nolint:errcheck // the connection only goes back
	_ = conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(interface{ Conn() *pgx.Conn })
		if !ok {
			return nil
		}
		done = true
		stored, err = pgclaim.Store(ctx, c.Conn(), b.queue, b.lanesOf(items), items)
		return nil
	})
	if done && err == nil {
		b.connections.use(conn)
	}
	return stored, done, err
}
