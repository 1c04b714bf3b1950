package main

import (
	"context"
	"database/sql"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver
)

// openDatabase opens the file and makes the business table. That one has no UNIQUE on purpose: nothing but the inbox
// keeps a second charge out.
func openDatabase(ctx context.Context, dir string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "shop.db"))+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer: let the messages stand in line for it
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS charges (
  id       INTEGER PRIMARY KEY,
  order_id INTEGER NOT NULL,
  cents    INTEGER NOT NULL
)`)
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

// countCharges gives the number of charges of each order that has any, by SQL.
func countCharges(ctx context.Context, dir string) (map[int]int, error) {
	db, err := openDatabase(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // it was only read
	rows, err := db.QueryContext(ctx, `SELECT order_id, COUNT(*) FROM charges GROUP BY order_id ORDER BY order_id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	charges := map[int]int{}
	for rows.Next() {
		var id, n int
		if err := rows.Scan(&id, &n); err != nil {
			return nil, err
		}
		charges[id] = n
	}
	return charges, rows.Err()
}
