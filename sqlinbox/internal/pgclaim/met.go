package pgclaim

import "github.com/jackc/pgx/v5/pgconn"

// Met tells whether owner has used the connection before, and notes that it does now. It must be called by the one who
// holds the connection.
func Met(pg *pgconn.PgConn, owner any) bool {
	const mark = "watermill-inbox"
	known, _ := pg.CustomData()[mark].(map[any]bool)
	if known[owner] {
		return true
	}
	if known == nil {
		known = map[any]bool{}
		pg.CustomData()[mark] = known
	}
	known[owner] = true
	return false
}
