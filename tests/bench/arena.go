package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

// arena is where one contender works: a schema of its own, and pools that nobody else uses.
type arena struct {
	config *pgx.ConnConfig
	admin  *pgx.Conn // never through the proxy
	proxy  *inboxtest.Proxy
	conns  int // of each pool
	schema string
	closes []func()
}

// newArena makes a schema with the handler's table. With a latency the pools go through a proxy.
func newArena(ctx context.Context, dsn string, conns int, latency time.Duration) (_ *arena, err error) {
	a := &arena{conns: conns, schema: "bench_" + strings.ToLower(rand.Text()[:12])}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.config, err = pgx.ParseConfig(dsn); err != nil {
		return nil, err
	}
	a.config.RuntimeParams["search_path"] = a.schema
	if a.admin, err = pgx.ConnectConfig(ctx, a.config.Copy()); err != nil {
		return nil, err
	}
	a.onClose(func() {
		_, _ = a.admin.Exec(context.WithoutCancel(ctx), "DROP SCHEMA IF EXISTS "+a.schema+" CASCADE")
		_ = a.admin.Close(context.WithoutCancel(ctx))
	})
	if err := a.create(ctx, "SCHEMA "+a.schema); err != nil {
		return nil, err
	}
	if err := a.create(ctx, `TABLE effects (
		id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		message_id text NOT NULL
	)`); err != nil {
		return nil, err
	}
	if latency > 0 {
		a.proxy, err = inboxtest.NewProxy(net.JoinHostPort(a.config.Host, strconv.Itoa(int(a.config.Port))))
		if err != nil {
			return nil, err
		}
		a.onClose(func() { _ = a.proxy.Close() })
		a.proxy.SetLatency(latency)
		a.config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", a.proxy.Addr())
		}
	}
	return a, nil
}

// create runs CREATE on the server.
func (a *arena) create(ctx context.Context, what string) error {
	_, err := a.admin.Exec(ctx, "CREATE "+what)
	return err
}

// pool gives a pgx pool of the arena's number of connections.
func (a *arena) pool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	config.ConnConfig = a.config.Copy()
	config.MaxConns, config.MinConns = int32(a.conns), int32(a.conns)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	a.onClose(pool.Close)
	return pool, nil
}

// db gives a database/sql pool of the same size on pgx's own driver.
func (a *arena) db() *sql.DB { return a.sized(stdlib.OpenDB(*a.config.Copy())) }

// claimDB gives one on the driver that sends the claim together with BEGIN.
func (a *arena) claimDB() *sql.DB { return a.sized(pgxinbox.OpenDB(*a.config.Copy())) }

func (a *arena) sized(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(a.conns)
	db.SetMaxIdleConns(a.conns)
	a.onClose(func() { _ = db.Close() })
	return db
}

func (a *arena) onClose(fn func()) { a.closes = append(a.closes, fn) }

// close gives everything back, the last thing first.
func (a *arena) close() {
	for i := len(a.closes) - 1; i >= 0; i-- {
		a.closes[i]()
	}
}
