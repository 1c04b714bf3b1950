package pgclaim

import (
	"context"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Request asks a driver below database/sql to send a claim together with the BEGIN that it is asked for. It travels in
// the context of BeginTx, through any wrapper around the driver; a driver that does not know it leaves Answered false.
type Request struct {
	Claimer *Claimer
	Claim   *engine.Claim

	// Answered tells that the claim was sent. Claimed: the transaction holds it. Otherwise the transaction that BeginTx
	// gave is over already, and Row is what stands under the key.
	Answered, Claimed bool
	Row               *engine.Row
	Proposal          engine.Proposal // beside Claimed: what became of the claim's Operation

	// Conn is the connection of a claimed transaction, which a wrapper may hide from the one who asked.
	Conn *pgconn.PgConn
}

type requestKey struct{}

// WithRequest puts a request into the context of a BeginTx; that context must not reach a handler, whose own BeginTx
// would claim again.
func WithRequest(ctx context.Context, r *Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// RequestFrom gives the request of a BeginTx, without the answers that an earlier try may have left; nil for any other
// BeginTx.
func RequestFrom(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	if r != nil {
		r.Answered, r.Claimed, r.Row, r.Proposal, r.Conn = false, false, nil, engine.NoProposal, nil
	}
	return r
}
