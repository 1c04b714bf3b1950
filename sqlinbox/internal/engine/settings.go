package engine

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// The defaults of a store's configuration.
const (
	DefaultTablePrefix   = "watermill_inbox"
	DefaultInFlightWait  = 5 * time.Second
	DefaultTxRetries     = 3
	DefaultCommitTimeout = 10 * time.Second
	DefaultDoneTTL       = time.Minute
	DefaultDoneKeys      = 65536
)

// Settings are what the configuration of a store says about Process.
type Settings struct {
	InFlightWait  time.Duration // how long copies in flight elsewhere are waited for
	TxRetries     int           // how often a transaction is run again
	CommitTimeout time.Duration // limit of a commit or rollback, which do not obey the message's context
	DoneTTL       time.Duration // how long a message is known to be handled without asking the database
	DoneKeys      int           // how many such messages
	// OperationLockSpace is LockSpace for operations.
	OperationLockSpace LockSpace
	// LaneSpace is LockSpace for lanes of the queue.
	LaneSpace LockSpace
	LockSpace LockSpace // what keeps the locks of two inboxes in one database apart
	Logger    watermill.LoggerAdapter
}

// resolved gives the settings with 0 turned into the default and -1 into none.
func (s Settings) resolved() Settings {
	s.InFlightWait = orDefault(s.InFlightWait, DefaultInFlightWait)
	s.TxRetries = orDefault(s.TxRetries, DefaultTxRetries)
	s.CommitTimeout = orDefault(s.CommitTimeout, DefaultCommitTimeout)
	s.DoneTTL = orDefault(s.DoneTTL, DefaultDoneTTL)
	s.DoneKeys = orDefault(s.DoneKeys, DefaultDoneKeys)
	if s.Logger == nil {
		s.Logger = watermill.NopLogger{}
	}
	return s
}

func orDefault[T int | time.Duration](value, fallback T) T {
	switch {
	case value == 0:
		return fallback
	case value < 0:
		return 0
	}
	return value
}
