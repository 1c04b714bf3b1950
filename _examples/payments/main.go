// Command payments shows both lines of defence. A client that misses a reply sends its payment again, in a new message;
// now and then it changes the amount as well. The broker delivers every message twice. Every payment is booked exactly once.
//
// It needs only Go: an SQLite file in a temporary folder is the database, gochannel is the broker. With -postgres it
// uses PostgreSQL at DATABASE_URL, by the same code. The part to copy is service.go.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite" // the driver

	"github.com/watermill-contrib/watermill-inbox/_examples/internal/demo"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/pgxinbox"
)

func main() {
	postgres := flag.Bool("postgres", false, "use PostgreSQL at DATABASE_URL instead of an SQLite file")
	flag.Parse()
	if *postgres {
		demo.Main(onPostgreSQL)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := onSQLite(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "payments:", err)
		os.Exit(1)
	}
}

func onSQLite(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "inbox-payments-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "bank.db"))+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer: let the messages stand in line for it
	return story(ctx, db, sqlinbox.SQLite)
}

// onPostgreSQL opens the database by pgxinbox.OpenDB: both claims travel with BEGIN.
func onPostgreSQL(ctx context.Context, databaseURL string) error {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return err
	}
	return story(ctx, pgxinbox.OpenDB(*config), sqlinbox.PostgreSQL)
}

// story makes the tables, starts the service, lets the client pay, and counts. It closes db.
func story(ctx context.Context, db *sql.DB, dialect sqlinbox.Dialect) (err error) {
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := makeTables(ctx, db); err != nil {
		return err
	}
	fmt.Printf("%d payments. The client sends some of them again, each time under a new UUID; the broker delivers every message twice.\n\n", paymentCount)

	w := newWitness()
	s, err := newService(ctx, db, dialect, w)
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.router.Run(ctx) }()
	select {
	case <-s.router.Running():
	case err := <-stopped:
		return err
	}
	payments := makePayments()
	if err := payAll(s.broker, payments, w); err != nil {
		return err
	}
	if err := errors.Join(s.router.Close(), <-stopped); err != nil {
		return err
	}
	return report(ctx, db, payments, w)
}
