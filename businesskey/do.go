package businesskey

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Operation is one thing that is to happen once.
type Operation struct {
	// Scope is whose ids they are. Defaults to the consumer of the message that is being handled; outside any message it
	// is required (inbox.ErrNoScope).
	Scope string
	// ID is the operation id, any bytes, up to inbox.MaxIDLength. Required (inbox.ErrNoOperationID).
	ID string
	// Content is what two calls of one operation must share; other content under a used id is inbox.ErrMismatch. Defaults
	// to none: only the id counts.
	Content []byte
}

// Do runs fn at most once for the operation and gives its result, or the recorded one of the call that was first.
//
// Inside a handler behind the inbox, with the message's context, the operation is part of the message's transaction. An
// error then rolls back the whole of it, also if the handler returns nil; an operation that is in flight elsewhere makes
// the delivery start again from the beginning when it may be free, at most for the store's InFlightWait
// (inbox.ErrInFlight). Outside any message it has a transaction of its own, which fn gets by TxFromContext of the store's
// package, and fn may be called again after a serialization failure.
//
// Every error is an [*inbox.OperationError], inside a handler within the delivery's own.
func (k *Keys) Do(ctx context.Context, op Operation, fn func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	result, err := k.do(ctx, op, fn)
	return result.Value, err
}

func (k *Keys) do(ctx context.Context, op Operation, fn func(ctx context.Context) ([]byte, error)) (inbox.OperationResult, error) {
	return k.store.Operate(ctx, resolve(ctx, op), func(ctx context.Context) (inbox.OperationResult, error) {
		value, err := fn(ctx)
		if err == nil && len(value) > k.config.MaxResult {
			err = fmt.Errorf("%w: %d bytes, at most %d are allowed (businesskey.Config.MaxResult)", inbox.ErrResultTooLarge, len(value), k.config.MaxResult)
		}
		return inbox.OperationResult{Value: value}, err
	})
}

// DoJSON is [Keys.Do] for a result of any type that encoding/json can write and read. For an operation that was done
// without a result, by the middleware, it gives the zero value.
func DoJSON[T any](ctx context.Context, k *Keys, op Operation, fn func(ctx context.Context) (T, error)) (T, error) {
	var result T
	recorded, err := k.Do(ctx, op, func(ctx context.Context) ([]byte, error) {
		value, err := fn(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(value)
	})
	if err != nil {
		return result, err
	}
	if len(recorded) == 0 { // done by the middleware, or by Do without a result
		return result, nil
	}
	if err := json.Unmarshal(recorded, &result); err != nil {
		return result, &inbox.OperationError{Scope: resolve(ctx, op).Scope, ID: op.ID, Err: fmt.Errorf("recorded result: %w", err)}
	}
	return result, nil
}

// DoAll is [Keys.Do] for several operations in one transaction: all of them are done or none. They are claimed in the
// order of their keys, whatever their order here, so that two callers with the same operations do not get into each
// other's way. fn is called for those that were not done before; the results are in the order of operations, which must
// not name one twice (inbox.ErrNested).
func (k *Keys) DoAll(ctx context.Context, operations []Operation, fn func(ctx context.Context, op Operation) ([]byte, error)) ([][]byte, error) {
	order := make([]int, len(operations))
	for i := range order {
		order[i] = i
	}
	key := func(i int) []byte { storage := resolve(ctx, operations[i]).Storage(); return storage[:] }
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(key(a), key(b)) })
	for i := range len(order) - 1 {
		if bytes.Equal(key(order[i]), key(order[i+1])) {
			op := resolve(ctx, operations[order[i]])
			return nil, &inbox.OperationError{Scope: op.Scope, ID: op.ID, Err: fmt.Errorf("%w: the operation is named twice", inbox.ErrNested)}
		}
	}
	results := make([][]byte, len(operations))
	if err := k.doAll(ctx, order, operations, results, fn); err != nil {
		return nil, err
	}
	return results, nil
}

// doAll nests each operation in the work of the one before it, so that they share its transaction also outside a message.
// One that was done before has no work; the rest goes on beside it.
func (k *Keys) doAll(ctx context.Context, order []int, operations []Operation, results [][]byte, fn func(context.Context, Operation) ([]byte, error)) error {
	if len(order) == 0 {
		return nil
	}
	first, rest := order[0], order[1:]
	result, err := k.do(ctx, operations[first], func(ctx context.Context) ([]byte, error) {
		value, err := fn(ctx, operations[first])
		if err == nil {
			err = k.doAll(ctx, rest, operations, results, fn)
		}
		return value, err
	})
	if err != nil {
		return err
	}
	results[first] = result.Value
	if !result.Repeated {
		return nil
	}
	return k.doAll(ctx, rest, operations, results, fn)
}

// resolve fills in the scope.
func resolve(ctx context.Context, op Operation) inbox.Operation {
	if op.Scope == "" {
		if key, ok := inbox.KeyFromContext(ctx); ok {
			op.Scope = key.Consumer
		}
	}
	return inbox.Operation{Scope: op.Scope, ID: op.ID, Fingerprint: fingerprint(op.Content)}
}
