package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// watcher is told what pgx sends; nil is nobody.
type watcher struct {
	query    func(sql string, args []any)
	batchEnd func()
}

var (
	_ pgx.QueryTracer = (*watcher)(nil)
	_ pgx.BatchTracer = (*watcher)(nil)
)

// TraceQueryStart is pgx.QueryTracer's.
func (w *watcher) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if w.query != nil {
		w.query(data.SQL, data.Args)
	}
	return ctx
}

// TraceQueryEnd is pgx.QueryTracer's.
func (w *watcher) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart is pgx.BatchTracer's.
func (w *watcher) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery is pgx.BatchTracer's.
func (w *watcher) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd is pgx.BatchTracer's.
func (w *watcher) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {
	if w.batchEnd != nil {
		w.batchEnd()
	}
}
