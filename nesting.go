package inbox

import (
	"context"
	"sync/atomic"
)

type openKey struct{}

// open marks a call chain in which a delivery's transaction may be open. It stays in contexts that outlive the
// handler (a gochannel with PreserveContext hands them on), so it says itself when it is over.
type open struct {
	store Store
	key   Key
	over  atomic.Bool
}

func withOpen(ctx context.Context, o *open) context.Context {
	return context.WithValue(ctx, openKey{}, o)
}

func openFrom(ctx context.Context) *open {
	o, _ := ctx.Value(openKey{}).(*open)
	if o == nil || o.over.Load() {
		return nil
	}
	return o
}
