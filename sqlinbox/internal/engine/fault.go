package engine

import (
	"context"
	"errors"
	"fmt"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Fault is a kind of database trouble, as far as Process acts differently on it.
type Fault int

// The kinds of trouble.
const (
	FaultNone          Fault = iota // not an answer of the database
	FaultOther                      // the database answered with an error of no special kind
	FaultSerialization              // given up in favour of another transaction: run it again
	FaultBusy                       // somebody else holds what the claim needs
	FaultLost                       // the connection is gone or never answered: what it did last is unknown
	FaultUnavailable                // the database answered that it cannot serve now
	FaultStalePlan                  // a cached statement no longer fits the table
	FaultSchema                     // a table or column is missing
	FaultReadOnly                   // writes are refused
	FaultNoPartition                // no partition for the row
)

func (f Fault) sentinel() error {
	switch f {
	case FaultSerialization:
		return inbox.ErrSerialization
	case FaultLost, FaultUnavailable, FaultBusy, FaultStalePlan:
		return inbox.ErrUnavailable
	case FaultSchema:
		return inbox.ErrSchema
	case FaultReadOnly:
		return inbox.ErrReadOnly
	case FaultNoPartition:
		return inbox.ErrNoPartition
	}
	return nil
}

// faultOf is the kind of trouble of one of the engine's own statements: one that the database did not answer is lost.
// (An error of the handler is not judged so: its connection refused may be some other server's.)
func (e *Engine) faultOf(err error) Fault {
	f := e.backend.Fault(err)
	if f == FaultNone {
		f = FaultLost
	}
	if f == FaultLost {
		e.done.empty()
	}
	return f
}

// claimError names what went wrong with a claim. Its values are bound and encoded, so whatever the database has against
// it, another message would have met it too: it is never the message's fault.
func (p *process) claimError(err error) error {
	f := p.faultOf(err)
	if f == FaultOther {
		f = FaultUnavailable
	}
	return Named(f, err)
}

// Named puts the inbox's name for a kind of fault in front of the database's own error.
func Named(f Fault, err error) error {
	name := f.sentinel()
	if name == nil || errors.Is(err, name) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", name, err)
}

// SQLStateFault tells the kind of trouble from a PostgreSQL error code.
func SQLStateFault(code string) Fault {
	switch code {
	case "40001", "40P01":
		return FaultSerialization
	case "0A000":
		return FaultStalePlan
	case "42P01", "42703", "3F000":
		return FaultSchema
	case "25006":
		return FaultReadOnly
	case "57P01", "57P02", "57P03", "57P05", "25P03":
		return FaultLost // the server closes the connection with these
	}
	if len(code) == 5 {
		switch code[:2] {
		case "08":
			return FaultLost
		case "53", "58", "XX":
			return FaultUnavailable
		}
	}
	return FaultOther
}
