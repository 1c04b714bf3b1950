package sqlinbox

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/queue"
)

// Store is queue.Backend's Store.
func (b *backend) Store(ctx context.Context, items []*queue.Item) (stored []bool, err error) {
	if stored, done, err := b.storeTogether(ctx, items); done {
		return stored, b.missingTable(ctx, err)
	}
	err = b.inTx(ctx, func(t *transaction) error {
		if b.queue.LockTimeout != "" {
			if _, err := t.tx.ExecContext(ctx, b.queue.LockTimeout); err != nil {
				return err
			}
		}
		stored, err = t.StoreItems(ctx, items)
		return err
	})
	return stored, b.missingTable(ctx, err)
}

// StoreItems is engine.StoreTx's StoreItems.
func (t *transaction) StoreItems(ctx context.Context, items []*queue.Item) (stored []bool, err error) {
	b := t.backend
	if err := b.lockLanes(ctx, t, items); err != nil {
		return nil, managed(err)
	}
	stored = make([]bool, len(items))
	if b.queue.StoreAll.SQL != "" {
		return stored, managed(b.storeAll(ctx, t, items, stored))
	}
	for i, item := range items {
		if err := b.storeOne(ctx, t, item, &stored[i]); err != nil {
			return nil, managed(err)
		}
	}
	return stored, nil
}

// lanesOf gives what to lock for the items, each once and in order.
func (b *backend) lanesOf(items []*queue.Item) []int64 {
	var lanes []int64
	for _, item := range items {
		if item.Lane != 0 {
			lanes = append(lanes, b.laneOrder(item.Lane))
		}
	}
	slices.Sort(lanes)
	return slices.Compact(lanes)
}

// lockLanes locks the lanes of the items, each once and in order, by statements of their own: what comes after them sees
// what the transactions before have committed.
func (b *backend) lockLanes(ctx context.Context, t *transaction, items []*queue.Item) error {
	if b.queue.LockLane.SQL == "" {
		return nil
	}
	for _, lane := range b.lanesOf(items) {
		if err := t.lockLane(ctx, lane); err != nil {
			return err
		}
	}
	return nil
}

// laneOrder is what lanes are locked in the order of: on MySQL several share a row.
func (b *backend) laneOrder(lane int64) int64 {
	if b.config.Dialect == MySQL {
		return lane & 255
	}
	return lane
}

func (t *transaction) lockLane(ctx context.Context, lane int64) error {
	lock := t.backend.queue.LockLane
	if lock.SQL == "" {
		return nil
	}
	rows, err := t.tx.QueryContext(ctx, lock.SQL, lock.Args(lane)...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	for rows.Next() {  // its row does not matter
	}
	return rows.Err()
}

// lane is how a lane is passed: 0 is NULL.
func lane(v int64) any {
	if v == 0 {
		return nil
	}
	return v
}

func (b *backend) storeOne(ctx context.Context, t *transaction, item *queue.Item, stored *bool) (err error) {
	c := item.Claim
	*stored, err = b.insertRow(ctx, t.tx, b.sql.LockFirst, b.queue.Store, 0,
		b.bytes16(c.Key), b.bytes16(c.Fingerprint), b.time(c.MessageTime),
		c.Consumer, c.Source, c.MessageID, c.Topic, c.Scope, b.bytes16(c.HorizonID))
	if err != nil || !*stored {
		return err
	}
	enqueue := b.queue.Enqueue
	_, err = t.tx.ExecContext(ctx, enqueue.SQL, enqueue.Args(b.bytes16(c.Key), b.bytes16(item.Consumer), lane(item.Lane), item.Message)...)
	return err
}

// storeAll stores all items by one statement on PostgreSQL.
func (b *backend) storeAll(ctx context.Context, t *transaction, items []*queue.Item, stored []bool) error {
	rows, err := t.tx.QueryContext(ctx, b.queue.StoreAll.SQL, storeArgs(items)...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	index := make(map[inbox.StorageKey]int, len(items))
	for i, item := range items {
		index[item.Claim.Key] = i
	}
	for rows.Next() {
		var raw []byte
		if err := rows.Scan(&raw); err != nil {
			return err
		}
		key, err := parse16(raw)
		if err != nil {
			return err
		}
		stored[index[key]] = true
	}
	return rows.Err()
}

// storeArgs are the columns of the items as texts of PostgreSQL arrays, which every driver passes.
func storeArgs(items []*queue.Item) []any {
	const columns = 12
	var arrays [columns]strings.Builder
	for i := range arrays {
		arrays[i].WriteByte('{')
	}
	for n, item := range items {
		c := item.Claim
		messageTime := "NULL"
		if !c.MessageTime.IsZero() {
			messageTime = c.MessageTime.UTC().Format(`"2006-01-02 15:04:05.999999Z07:00"`)
		}
		lane := "NULL"
		if item.Lane != 0 {
			lane = strconv.FormatInt(item.Lane, 10)
		}
		values := [columns]string{
			c.Key.String(), inbox.StorageKey(c.Fingerprint).String(), messageTime,
			element(c.Consumer), element(c.Source), element(c.MessageID), element(c.Topic), element(c.Scope),
			c.HorizonID.String(), item.Consumer.String(), lane, fmt.Sprintf(`"\\x%x"`, item.Message),
		}
		for i, value := range values {
			if n > 0 {
				arrays[i].WriteByte(',')
			}
			arrays[i].WriteString(value)
		}
	}
	args := make([]any, columns)
	for i := range arrays {
		arrays[i].WriteByte('}')
		args[i] = arrays[i].String()
	}
	return args
}

// element quotes a text for an array's text.
func element(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
