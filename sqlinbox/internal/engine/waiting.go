package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Prober is a Backend that can find out, in one round trip outside any transaction, whether a key that was in flight
// elsewhere still is.
type Prober interface {
	// Probe gives the row of the key if it is there; else free tells whether a claim is worth while: nobody holds the key,
	// or nothing can be told without a claim.
	Probe(ctx context.Context, c *Claim) (row *Row, free bool, err error)
}

// enter waits for the copies of this process, which costs no connection.
func (p *process) enter(ctx context.Context) error {
	waited, err := p.flight.enter(ctx, p.key, p.settings.InFlightWait)
	p.result.Wait = waited
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errWaited):
		return p.inFlight(nil)
	}
	return p.fail(inbox.PhaseClaim, fmt.Errorf("%w: %w", inbox.ErrInFlight, err))
}

// probe asks, once a key was seen in flight elsewhere, whether it still is, and waits if so: known is the row of a message
// that was handled meanwhile, free the advice to claim. A failing probe is no answer: the claim will tell.
func (p *process) probe(ctx context.Context) (known *Row, free bool, err error) {
	prober, can := p.backend.(Prober)
	if !p.busy || !can {
		return nil, true, nil
	}
	row, free, err := prober.Probe(ctx, p.claim)
	if err != nil || free || row != nil {
		return row, err != nil || free, nil //nolint:nilerr // see above
	}
	return nil, false, p.waitTurn(ctx, nil)
}

// waitTurn waits before the next claim of a key that is in flight elsewhere; busy is what the database said of it, if
// anything. No connection is held meanwhile.
func (p *process) waitTurn(ctx context.Context, busy error) error {
	p.busy = true
	left := p.settings.InFlightWait - p.result.Wait
	if left <= 0 {
		return p.inFlight(busy)
	}
	began := time.Now()
	err := sleep(ctx, min(p.pause.next(), left))
	p.result.Wait += time.Since(began)
	if err != nil {
		return p.fail(inbox.PhaseClaim, fmt.Errorf("%w: %w", inbox.ErrInFlight, err))
	}
	return nil
}

// inFlight is the error of a copy that has waited as long as it may.
func (p *process) inFlight(busy error) error {
	err := fmt.Errorf("%w: waited %v (InFlightWait is %v)", inbox.ErrInFlight, p.result.Wait.Round(time.Millisecond), p.settings.InFlightWait)
	return p.fail(inbox.PhaseClaim, join(err, busy))
}
