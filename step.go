package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// Step runs fn once for a message of a two-phase consumer, however often the message is tried: its result is stored, and
// later attempts get it without running fn. For calls to other systems, whose answer a crash would lose otherwise. The
// result is stored as JSON.
//
// A crash between the call and the storing of its result runs fn again: give the other system the IdempotencyKey.
// Renewing and storing are fenced: an attempt that has lost its lease gets ErrLeaseLost. Where two attempts ran fn, the
// first stored result is everybody's. Inside an operation of package businesskey the step belongs to the operation. Step
// does not run inside the message's transaction (ErrTxOpen): call it before TxFromContext. Outside a message from the
// queue it is ErrNotLeased.
func Step[T any](ctx context.Context, name string, fn func(ctx context.Context) (T, error)) (T, error) {
	var result T
	stored, err := StepBytes(ctx, name, func(ctx context.Context) ([]byte, error) {
		value, err := fn(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(value)
	})
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal(stored, &result); err != nil {
		return result, fmt.Errorf("inbox: stored result of step %q: %w", name, err)
	}
	return result, nil
}

// StepBytes is [Step] for a result that is stored as it is.
func StepBytes(ctx context.Context, name string, fn func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	lease, ok := LeaseFromContext(ctx)
	if ok { // but not of a message that was made with the context of the leased one, and is handled by itself
		if key, handled := KeyFromContext(ctx); handled {
			ok = key == lease.Delivery().Key
		}
	}
	if !ok {
		return nil, fmt.Errorf("inbox: step %q: %w", name, ErrNotLeased)
	}
	return lease.Step(ctx, name, fn)
}

// IdempotencyKey gives a key, in the form of a UUID, that is the same in every attempt of a message, and another one for
// every message and label: for systems that merge calls with equal keys. Inside an operation of package businesskey it
// is that of the operation, so two messages of one operation show the other system one key.
func IdempotencyKey(ctx context.Context, label string) (string, error) {
	if op, ok := OperationFromContext(ctx); ok {
		return uuidOf("operation", op.Scope, op.ID, label), nil
	}
	key, ok := KeyFromContext(ctx)
	if !ok {
		lease, leased := LeaseFromContext(ctx)
		if !leased {
			return "", fmt.Errorf("inbox: idempotency key %q: %w", label, ErrNotLeased)
		}
		key = lease.Delivery().Key
	}
	return uuidOf("message", key.Consumer, key.Source, key.ID, label), nil
}

// uuidOf is a UUID of version 8 (RFC 9562: custom) over the parts.
func uuidOf(parts ...string) string {
	var b []byte
	for _, part := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	var id StorageKey
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}
