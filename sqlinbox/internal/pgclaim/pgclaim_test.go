package pgclaim

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

func TestMet(t *testing.T) {
	t.Parallel()
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), services.PostgreSQL(t))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
		return conn
	}
	one, other := new(int), new(int) // owners
	conn := connect()
	conn.PgConn().CustomData()["theirs"] = "kept"
	for _, owner := range []any{one, other} {
		require.False(t, Met(conn.PgConn(), owner))
		for range 3 {
			require.True(t, Met(conn.PgConn(), owner))
		}
	}
	require.Equal(t, "kept", conn.PgConn().CustomData()["theirs"])
	require.False(t, Met(connect().PgConn(), one), "another connection")
	require.True(t, Met(conn.PgConn(), one))
}

// A wrapper may try BeginTx again on another connection: what the first try answered must not stand.
func TestRequestFromResets(t *testing.T) {
	t.Parallel()
	require.Nil(t, RequestFrom(t.Context()))
	claimer, claim := &Claimer{IdleTimeout: "x"}, &engine.Claim{Topic: "orders"}
	request := &Request{Claimer: claimer, Claim: claim}
	ctx := WithRequest(t.Context(), request)
	require.Same(t, request, RequestFrom(ctx))

	request.Answered, request.Claimed, request.Row = true, true, &engine.Row{Found: true}
	require.Same(t, request, RequestFrom(ctx))
	require.Equal(t, Request{Claimer: claimer, Claim: claim}, *request)
	require.Nil(t, RequestFrom(WithRequest(ctx, nil)))
}
