package main

import (
	"context"
	"database/sql"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver

	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// openDatabase opens the file and makes the business tables. They have no UNIQUE on purpose: nothing but the inbox keeps
// a second charge out.
func openDatabase(ctx context.Context, dir string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "shop.db"))+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer: let the messages stand in line for it
	for _, statement := range []string{
		`CREATE TABLE IF NOT EXISTS charges (order_id INTEGER NOT NULL, charge_id TEXT NOT NULL, steps_replayed INTEGER NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS cancelled (order_id INTEGER NOT NULL, reason TEXT NOT NULL)`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			_ = db.Close()
			return nil, err
		}
	}
	return db, nil
}

func countCharges(ctx context.Context, dir string, order int) (n int, err error) {
	db, err := openDatabase(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer db.Close() //nolint:errcheck // it was only read
	return n, db.QueryRowContext(ctx, `SELECT COUNT(*) FROM charges WHERE order_id = ?`, order).Scan(&n)
}

// books are what the database says of each order.
type books struct {
	charges   map[int]int
	replayed  map[int]int // steps that were not called again
	cancelled map[int]int
	dead      []sqlinbox.QueuedMessage
}

func readBooks(ctx context.Context, dir string) (b books, err error) {
	db, err := openDatabase(ctx, dir)
	if err != nil {
		return b, err
	}
	defer db.Close() //nolint:errcheck // it was only read
	for _, part := range []struct {
		into  *map[int]int
		query string
	}{
		{&b.charges, `SELECT order_id, COUNT(*) FROM charges GROUP BY order_id`},
		{&b.replayed, `SELECT order_id, SUM(steps_replayed) FROM charges GROUP BY order_id`},
		{&b.cancelled, `SELECT order_id, COUNT(*) FROM cancelled GROUP BY order_id`},
	} {
		if *part.into, err = readCounts(ctx, db, part.query); err != nil {
			return b, err
		}
	}
	store, err := sqlinbox.NewStore(ctx, db, sqlinbox.Config{Dialect: sqlinbox.SQLite})
	if err != nil {
		return b, err
	}
	b.dead, err = store.Stuck(ctx, 0) // nothing else is left in the queue
	return b, err
}

func readCounts(ctx context.Context, db *sql.DB, query string) (map[int]int, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	counts := map[int]int{}
	for rows.Next() {
		var order, n int
		if err := rows.Scan(&order, &n); err != nil {
			return nil, err
		}
		counts[order] = n
	}
	return counts, rows.Err()
}
