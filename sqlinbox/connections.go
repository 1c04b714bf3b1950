package sqlinbox

import (
	"database/sql"
	"reflect"
	"sync"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/pgclaim"
)

// connections knows the physical connections that were used before. A new one may lead to another server: a fail-over
// shows so.
type connections struct {
	met func() // is told of a new one

	mu   sync.Mutex
	seen map[any]struct{}
}

// mostConnections is where the memory of connections starts anew; pools are smaller.
const mostConnections = 512

func (c *connections) use(conn *sql.Conn) {
	if pg := pgConnOf(conn); pg != nil { // marked itself: over a pgx pool, the driver's connection is another one each time
		if !pgclaim.Met(pg, c) {
			c.met()
		}
		return
	}
	_ = conn.Raw(func(driverConn any) error {
		if !reflect.ValueOf(driverConn).Comparable() { // a wrapper's that is no pointer: it may be another one each time
			c.met()
			return nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, known := c.seen[driverConn]; known {
			return nil
		}
		if c.seen == nil || len(c.seen) >= mostConnections {
			c.seen = map[any]struct{}{}
		}
		// The connection is kept from being collected, so that no other one can come to have its address.
		c.seen[driverConn] = struct{}{}
		c.met()
		return nil
	})
}
