package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

func TestSQLStateFault(t *testing.T) {
	t.Parallel()
	for fault, codes := range map[engine.Fault][]string{
		engine.FaultSerialization: {"40001", "40P01"},
		engine.FaultStalePlan:     {"0A000"},
		engine.FaultSchema:        {"42P01", "42703", "3F000"},
		engine.FaultReadOnly:      {"25006"},
		engine.FaultLost:          {"57P01", "57P02", "57P03", "57P05", "25P03", "08000", "08006", "08P01"},
		engine.FaultUnavailable:   {"53100", "53200", "53300", "58030", "XX000", "XX001"},
		engine.FaultOther:         {"23505", "22001", "42501", "25P02", "57014", "40002", "", "40", "08", "53", "XX"},
	} {
		for _, code := range codes {
			require.Equal(t, fault, engine.SQLStateFault(code), "SQLSTATE %q", code)
		}
	}
}

func TestNamed(t *testing.T) {
	t.Parallel()
	cause := errors.New("ERROR: no (SQLSTATE 00000)")
	for fault, want := range map[engine.Fault]error{
		engine.FaultSerialization: inbox.ErrSerialization,
		engine.FaultLost:          inbox.ErrUnavailable,
		engine.FaultUnavailable:   inbox.ErrUnavailable,
		engine.FaultBusy:          inbox.ErrUnavailable,
		engine.FaultStalePlan:     inbox.ErrUnavailable,
		engine.FaultSchema:        inbox.ErrSchema,
		engine.FaultReadOnly:      inbox.ErrReadOnly,
		engine.FaultNoPartition:   inbox.ErrNoPartition,
	} {
		err := engine.Named(fault, cause)
		require.ErrorIs(t, err, want)
		require.ErrorIs(t, err, cause, "the database's own error stays")
		require.EqualError(t, err, want.Error()+": "+cause.Error())
		require.Equal(t, err, engine.Named(fault, err), "a name is given once")
		require.True(t, inbox.IsTransient(err))
	}
	for _, fault := range []engine.Fault{engine.FaultNone, engine.FaultOther} {
		require.Equal(t, cause, engine.Named(fault, cause))
	}
}

// A database that was not waited for is not unavailable.
func TestNamedLeavesTheContextsErrors(t *testing.T) {
	t.Parallel()
	for _, ctxErr := range []error{context.Canceled, context.DeadlineExceeded} {
		err := fmt.Errorf("timeout: %w", ctxErr)
		require.Equal(t, err, engine.Named(engine.FaultLost, err))
	}
}
