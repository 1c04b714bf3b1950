package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Claim is a delivery in the form in which it is stored.
type Claim struct {
	Key         inbox.StorageKey
	Fingerprint inbox.Fingerprint
	MessageTime time.Time // zero: unknown
	Consumer    string    // as readable text, see EncodeText
	Source      string
	MessageID   string
	Topic       string
	Scope       string // of the horizon; empty: the whole (consumer, source)
	HorizonID   inbox.StorageKey
	LockID      int64           // of the advisory lock
	Operation   *OperationClaim // proposed, to be claimed with it where that costs no round trip; nil: none
}

func newClaim(d inbox.Delivery, key inbox.StorageKey, space LockSpace) *Claim {
	return &Claim{
		Key:         key,
		Fingerprint: d.Fingerprint,
		MessageTime: d.MessageTime,
		Consumer:    EncodeText(d.Key.Consumer),
		Source:      EncodeText(d.Key.Source),
		MessageID:   EncodeText(d.Key.ID),
		Topic:       EncodeText(d.Topic),
		HorizonID:   HorizonID(d.Key.Consumer, d.Key.Source, ""),
		LockID:      space.ID(key),
	}
}

// HorizonID is the primary key of a horizon: parts of any length and bytes in 16 bytes, by the same hash as the key of a
// message.
func HorizonID(consumer, source, scope string) inbox.StorageKey {
	return inbox.Key{Consumer: consumer, Source: source, ID: scope}.Storage()
}

// ConsumerID is the primary key of a consumer's key scheme.
func ConsumerID(consumer string) inbox.StorageKey { return inbox.Key{Consumer: consumer}.Storage() }

// Row is what a read found under a key that could not be claimed.
type Row struct {
	Found       bool
	Processed   bool
	Late        bool // the message's time is not after the horizon
	Fingerprint inbox.Fingerprint
	Consumer    string
	Source      string
	MessageID   string
	RecordedBy  string // the handler that returned the recorded messages
	Recorded    []byte
}

// classify tells the deliveries of a taken key apart; the row is known to be found, or late. The order matters: a
// duplicate is a duplicate even when it is late.
func (p *process) classify(row *Row) error {
	c := p.claim
	if !row.Found {
		return fmt.Errorf("%w (message time %s)", inbox.ErrLate, c.MessageTime.UTC().Format(time.RFC3339Nano))
	}
	if row.Consumer != c.Consumer || row.Source != c.Source || row.MessageID != c.MessageID {
		return fmt.Errorf("%w: %s holds %s/%s/%s", inbox.ErrKeyCollision, c.Key, row.Consumer, row.Source, row.MessageID)
	}
	if err := p.compare(row.Fingerprint); err != nil {
		return err
	}
	p.result.Outcome = inbox.OutcomeQueued
	if row.Processed {
		p.remember(row.Fingerprint, len(row.Recorded) > 0)
		p.result.Outcome = inbox.OutcomeDuplicate
		return p.replay(row)
	}
	return nil
}

// compare applies the policy for other content under a used id.
func (p *process) compare(remembered inbox.Fingerprint) error {
	if remembered == p.d.Fingerprint {
		return nil
	}
	if !p.d.AcceptMismatch {
		return fmt.Errorf("%w: fingerprint %x, remembered %x", inbox.ErrMismatch, p.d.Fingerprint, remembered)
	}
	p.result.Mismatch = true
	return nil
}

// LockSpace is a hash of what keeps two inboxes in one database apart: schema, prefix, table.
type LockSpace [sha256.Size]byte

// NewLockSpace gives the lock space of a table.
func NewLockSpace(parts ...string) LockSpace {
	var b []byte
	for _, part := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}

// ID is the number of the advisory lock of a key: 64 bits of SHA-256 over the space and the key.
func (s LockSpace) ID(key inbox.StorageKey) int64 {
	var b [len(s) + len(key)]byte
	copy(b[:], s[:])
	copy(b[len(s):], key[:])
	sum := sha256.Sum256(b[:])
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// The key schemes: how storage keys are made, remembered per consumer. Another scheme would give a remembered message
// another key, and a second effect.
const (
	schemeID      = "1"
	schemeKeyTime = "1+key_time"
)

// checkScheme compares the delivery's key scheme with the consumer's, which the first claim of a consumer fixes. It
// costs statements of its own once per consumer and process.
func (p *process) checkScheme(ctx context.Context, wait time.Duration) error {
	want := schemeID
	if p.d.HasKeyTime {
		want = schemeKeyTime
	}
	have, known := p.schemes.Load(p.claim.Consumer)
	if !known {
		registered, err := p.backend.Scheme(ctx, Scheme{
			ID: ConsumerID(p.d.Key.Consumer), Consumer: p.claim.Consumer, Scheme: want,
		}, wait)
		if err != nil {
			return err
		}
		have = registered
		p.schemes.Store(p.claim.Consumer, have)
	}
	if have != want {
		return fmt.Errorf("%w: it is %q, this program has %q", inbox.ErrKeyScheme, have, want)
	}
	return nil
}

// Scheme is a consumer's key scheme, to be registered unless it has one.
type Scheme struct {
	ID               inbox.StorageKey
	Consumer, Scheme string
}
