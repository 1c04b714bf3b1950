package sqlinbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/dialect"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/queue"
)

var (
	_ queue.Backend       = (*backend)(nil)
	_ engine.Reader       = (*backend)(nil)
	_ engine.LeaseBackend = (*backend)(nil)
	_ engine.LeaseTx      = (*transaction)(nil)
)

// inTx runs fn in a transaction that does not die with ctx; once more, from its beginning, after a deadlock.
func (b *backend) inTx(ctx context.Context, fn func(t *transaction) error) error {
	const most = 3
	for again := 0; ; again++ {
		err := b.inTxOnce(ctx, fn)
		if again == most || ctx.Err() != nil || b.Fault(err) != engine.FaultSerialization {
			return err
		}
	}
}

func (b *backend) inTxOnce(ctx context.Context, fn func(t *transaction) error) error {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	t, err := b.beginAt(ctx, conn, engine.DefaultInFlightWait, b.queueOptions)
	if err != nil {
		_ = conn.Close()
		return err
	}
	defer t.Rollback(ctx) //nolint:errcheck // after Commit there is nothing to roll back
	if err := fn(t); err != nil {
		return err
	}
	return t.Commit(ctx, nil)
}

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

// Look is engine.Reader's Look.
func (b *backend) Look(ctx context.Context, c *engine.Claim) (*engine.Row, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // the connection only goes back
	return b.lookup(ctx, &transaction{backend: b, conn: conn}, c)
}

// Lease is queue.Backend's Lease.
func (b *backend) Lease(ctx context.Context, consumer inbox.StorageKey, limit int, token engine.Token, d time.Duration) (leased []*engine.QueueRow, err error) {
	if b.config.Dialect == PostgreSQL {
		leased, err = b.leaseAll(ctx, consumer, limit, token, d)
		return leased, b.missingTable(ctx, err)
	}
	err = b.inTx(ctx, func(t *transaction) error {
		leased, err = b.leaseEach(ctx, t, consumer, limit, token, d)
		return err
	})
	if err != nil {
		return nil, b.missingTable(ctx, err)
	}
	return leased, nil
}

func (b *backend) leaseAll(ctx context.Context, consumer inbox.StorageKey, limit int, token engine.Token, d time.Duration) ([]*engine.QueueRow, error) {
	args := []any{b.bytes16(consumer), limit, b.bytes16(token), d.Milliseconds(), nil}
	if leased, done, err := b.leaseTogether(ctx, args...); done {
		return leased, err
	}
	rows, err := b.db.QueryContext(ctx, b.queue.Lease.SQL, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var leased []*engine.QueueRow
	for rows.Next() {
		row, err := scanLeased(rows)
		if err != nil {
			return nil, err
		}
		leased = append(leased, row)
	}
	return leased, rows.Err()
}

func (b *backend) leaseEach(ctx context.Context, t *transaction, consumer inbox.StorageKey, limit int, token engine.Token, d time.Duration) ([]*engine.QueueRow, error) {
	seqs, err := b.pick(ctx, t, consumer, limit)
	if err != nil {
		return nil, err
	}
	var leased []*engine.QueueRow
	for _, seq := range seqs {
		lease, read := b.queue.Lease, b.queue.Leased
		if _, err := t.tx.ExecContext(ctx, lease.SQL, lease.Args(seq, b.bytes16(token), d.Milliseconds())...); err != nil {
			return nil, err
		}
		row, err := scanLeased(t.tx.QueryRowContext(ctx, read.SQL, read.Args(seq)...))
		if err != nil {
			return nil, err
		}
		leased = append(leased, row)
	}
	return leased, nil
}

func (b *backend) pick(ctx context.Context, t *transaction, consumer inbox.StorageKey, limit int) ([]int64, error) {
	pick := b.queue.Pick
	rows, err := t.tx.QueryContext(ctx, pick.SQL, pick.Args(b.bytes16(consumer), limit)...)
	if err != nil {
		return nil, err
	}
	return int64s(rows)
}

func scanLeased(row interface{ Scan(dest ...any) error }) (*engine.QueueRow, error) {
	var r engine.QueueRow
	var key, consumer, fingerprint []byte
	var handler sql.NullString
	var lane sql.NullInt64
	err := row.Scan(&r.Seq, &key, &consumer, &lane, &r.State, &r.Attempts, &r.Unfinished, &r.Message,
		&fingerprint, &r.Consumer, &r.Source, &r.MessageID, &r.Topic, &handler, &r.Recorded)
	if err != nil {
		return nil, err
	}
	r.RecordedBy, r.Lane = handler.String, lane.Int64
	if r.ConsumerID, err = parse16(consumer); err != nil {
		return nil, err
	}
	if r.Key, err = parse16(key); err != nil {
		return nil, err
	}
	if r.Fingerprint, err = parse16(fingerprint); err != nil {
		return nil, err
	}
	return &r, nil
}

// one executes a statement about one leased row and tells whether it was there.
func (b *backend) one(ctx context.Context, s dialect.Statement, row *engine.QueueRow, token engine.Token, args ...any) (bool, error) {
	result, err := b.db.ExecContext(ctx, s.SQL, s.Args(append([]any{row.Seq, b.bytes16(token)}, args...)...)...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// Renew is queue.Backend's Renew.
func (b *backend) Renew(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration) (bool, error) {
	return b.one(ctx, b.queue.Renew, row, token, d.Milliseconds())
}

// Retry is queue.Backend's Retry.
func (b *backend) Retry(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration, cause string) error {
	_, err := b.one(ctx, b.queue.Retry, row, token, d.Milliseconds(), cause)
	return err
}

// Release is queue.Backend's Release.
func (b *backend) Release(ctx context.Context, row *engine.QueueRow, token engine.Token) error {
	_, err := b.one(ctx, b.queue.Release, row, token)
	return err
}

// Postpone is queue.Backend's Postpone.
func (b *backend) Postpone(ctx context.Context, row *engine.QueueRow, token engine.Token, d time.Duration) error {
	return b.inTx(ctx, func(t *transaction) error {
		release := b.queue.Release
		held, err := t.exec(ctx, release, row.Seq, b.bytes16(token))
		if err != nil || !held {
			return err
		}
		if _, err := t.exec(ctx, b.queue.Delay, row.Seq, d.Milliseconds()); err != nil {
			return err
		}
		return t.FreeOperations(ctx, row.Key)
	})
}

// Promote is queue.Backend's Promote.
func (b *backend) Promote(ctx context.Context, consumer inbox.StorageKey, lane int64) error {
	return b.inTx(ctx, func(t *transaction) error { return t.promote(ctx, consumer, lane) })
}

func (t *transaction) promote(ctx context.Context, consumer inbox.StorageKey, lane int64) error {
	if err := t.lockLane(ctx, t.backend.laneOrder(lane)); err != nil {
		return err
	}
	_, err := t.exec(ctx, t.backend.queue.Promote, t.backend.bytes16(consumer), lane)
	return err
}

// BlockedLanes is queue.Backend's BlockedLanes.
func (b *backend) BlockedLanes(ctx context.Context, consumer inbox.StorageKey) ([]int64, error) {
	blocked := b.queue.BlockedLanes
	rows, err := b.db.QueryContext(ctx, blocked.SQL, blocked.Args(b.bytes16(consumer))...)
	if err != nil {
		return nil, err
	}
	return int64s(rows)
}

func int64s(rows *sql.Rows) ([]int64, error) {
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var values []int64
	for rows.Next() {
		var v int64
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, rows.Err()
}

// Finish is queue.Backend's Finish.
func (b *backend) Finish(ctx context.Context, row *engine.QueueRow, token engine.Token) error {
	return b.inTx(ctx, func(t *transaction) error {
		taken, err := t.exec(ctx, b.queue.Take, row.Seq, b.bytes16(token))
		if err == nil && !taken {
			err = inbox.ErrLeaseLost
		}
		if err != nil {
			return err
		}
		if row.State == engine.StateWaiting {
			if _, err := t.exec(ctx, b.queue.Processed, b.bytes16(row.Key)); err != nil {
				return err
			}
		}
		err = t.forget(ctx, row.Key)
		if err == nil && row.State == engine.StateWaiting {
			err = t.FreeOperations(ctx, row.Key)
		}
		if err == nil && row.Lane != 0 {
			err = t.promote(ctx, row.ConsumerID, row.Lane)
		}
		return err
	})
}

// forget deletes what is kept beside the memory of a message whose row is gone: its record, and the results of its steps.
func (t *transaction) forget(ctx context.Context, key inbox.StorageKey) error {
	var err error
	b := t.backend
	if b.config.Dialect == PostgreSQL {
		_, err = t.tx.ExecContext(ctx, b.sql.Forget.SQL, uuidArray([]inbox.StorageKey{key}))
	} else {
		_, err = t.exec(ctx, b.sql.Forget, b.bytes16(key))
	}
	if err != nil {
		return err
	}
	return t.ForgetSteps(ctx, key)
}

// NextDue is queue.Backend's NextDue.
func (b *backend) NextDue(ctx context.Context, consumer inbox.StorageKey) (time.Duration, bool, error) {
	var ms int64
	err := b.db.QueryRowContext(ctx, b.queue.NextDue.SQL, b.queue.NextDue.Args(b.bytes16(consumer))...).Scan(&ms)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return time.Duration(ms) * time.Millisecond, err == nil, err
}

// exec executes a statement in the transaction and tells whether it touched a row.
func (t *transaction) exec(ctx context.Context, s dialect.Statement, args ...any) (bool, error) {
	result, err := t.tx.ExecContext(ctx, s.SQL, s.Args(args...)...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// BeginLeased is engine.LeaseBackend's BeginLeased: the fence first, then the handler's work.
func (b *backend) BeginLeased(ctx context.Context, row *engine.QueueRow, token engine.Token, end engine.End) (engine.LeaseTx, error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	t, err := b.begin(ctx, conn, engine.DefaultInFlightWait)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	err = b.limitIdleness(ctx, t.tx)
	held := false
	if err == nil {
		held, err = t.exec(ctx, b.queue.Fence(end == engine.EndPublish, end == engine.EndBury), row.Seq, b.bytes16(token))
	}
	if err == nil && held && end != engine.EndBury {
		_, err = t.exec(ctx, b.queue.Processed, b.bytes16(row.Key))
		t.leased = row
	}
	if err != nil || !held {
		_ = t.Rollback(ctx)
		return nil, b.missingTable(ctx, err)
	}
	return t, nil
}

// Delete is engine.LeaseTx's Delete.
func (t *transaction) Delete(ctx context.Context, row *engine.QueueRow) error {
	_, err := t.exec(ctx, t.backend.queue.Delete, row.Seq)
	return managed(err)
}

// Promote is engine.LeaseTx's Promote.
func (t *transaction) Promote(ctx context.Context, row *engine.QueueRow) (bool, error) {
	if !t.KeepsOrder() {
		return false, nil
	}
	return true, managed(t.promote(ctx, row.ConsumerID, row.Lane))
}

// KeepsOrder is engine.StoreTx's KeepsOrder.
func (t *transaction) KeepsOrder() bool {
	b := t.backend
	level := b.options.Isolation
	return b.config.Dialect == SQLite || level == sql.LevelReadCommitted || level == sql.LevelDefault && b.config.readCommitted
}

// Because is engine.LeaseTx's Because.
func (t *transaction) Because(ctx context.Context, row *engine.QueueRow, cause string) error {
	_, err := t.exec(ctx, t.backend.queue.Because, row.Seq, cause)
	return managed(err)
}

// CompleteOperation is engine.LeaseTx's CompleteOperation.
func (t *transaction) CompleteOperation(ctx context.Context, c *engine.OperationClaim, owner inbox.StorageKey, value, messages []byte) error {
	done, err := t.exec(ctx, t.backend.queue.CompleteOperation, t.backend.bytes16(c.Key), value, messages, t.backend.bytes16(owner))
	if err == nil && !done {
		err = inbox.ErrLeaseLost
	}
	return managed(err)
}

// FreeOperations is engine.LeaseTx's FreeOperations.
func (t *transaction) FreeOperations(ctx context.Context, owner inbox.StorageKey) error {
	_, err := t.exec(ctx, t.backend.queue.FreeOperations, t.backend.bytes16(owner))
	return managed(err)
}

// ForgetSteps is engine.LeaseTx's ForgetSteps.
func (t *transaction) ForgetSteps(ctx context.Context, owner inbox.StorageKey) error {
	_, err := t.exec(ctx, t.backend.queue.ForgetSteps, t.backend.bytes16(owner))
	return managed(err)
}

// Look is engine.Reader's Look, in the transaction.
func (t *transaction) Look(ctx context.Context, c *engine.Claim) (*engine.Row, error) {
	return t.backend.lookup(ctx, t, c)
}

// Own is engine.LeaseSQL's Own.
func (b *backend) Own(ctx context.Context, row *engine.QueueRow, token engine.Token, c *engine.OperationClaim) (o engine.Ownership, err error) {
	err = b.inTx(ctx, func(t *transaction) error {
		// The row's lock, until the operation is claimed: a message that is done must not own anything.
		if o.Held, err = t.exec(ctx, b.queue.Hold, row.Seq, b.bytes16(token), row.LeaseTime.Milliseconds()); err != nil || !o.Held {
			return err
		}
		// Read first: on MySQL an INSERT that meets a row locks it, and two who then take it over would deadlock.
		var known bool
		if known, o.Owned, o.Done, err = b.ownedBy(ctx, t, c, row.Key); err != nil || known {
			return err
		}
		own := b.queue.OwnOperation
		o.Owned, err = t.exec(ctx, own, b.bytes16(c.Key), b.bytes16(c.Fingerprint), c.Scope, c.ID, c.LockID, b.bytes16(row.Key))
		if mysqlCode(err) == mysqlDuplicate || claimBusy(err) != err { //nolint:errorlint // the same error comes back unless it means busy
			return nil // somebody was faster
		}
		return err
	})
	return o, b.missingTable(ctx, err)
}

// ownedBy reads whose an operation is, if anybody's, and takes it over from a message that is not queued.
func (b *backend) ownedBy(ctx context.Context, t *transaction, c *engine.OperationClaim, owner inbox.StorageKey) (known, owned bool, done *engine.OperationRow, err error) {
	read := b.queue.OwnerOf
	var present, fingerprint []byte
	var queued bool
	var row engine.OperationRow
	err = t.tx.QueryRowContext(ctx, read.SQL, unprepared(t.conn, read.Args(b.bytes16(c.Key))...)...).
		Scan(&present, &queued, &fingerprint, &row.Scope, &row.ID, &row.Result, &row.Messages)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, nil, nil
	}
	if err != nil {
		return true, false, nil, err
	}
	if row.Fingerprint, err = parse16(fingerprint); err != nil {
		return true, false, nil, err
	}
	if present == nil {
		return true, false, &row, nil
	}
	has, err := parse16(present)
	if err != nil {
		return true, false, nil, err
	}
	if has == owner {
		if row.Fingerprint != c.Fingerprint || row.Scope != c.Scope || row.ID != c.ID {
			return true, false, &row, nil // told apart by the caller
		}
		return true, true, nil, nil
	}
	if queued {
		return true, false, nil, nil
	}
	owned, err = t.exec(ctx, b.queue.TakeOverOperation, b.bytes16(c.Key), b.bytes16(c.Fingerprint), b.bytes16(owner))
	return true, owned, nil, err
}

// FindStep is engine.LeaseSQL's FindStep.
func (b *backend) FindStep(ctx context.Context, owner inbox.StorageKey, name string) (result []byte, found bool, err error) {
	find := b.queue.FindStep
	err = b.db.QueryRowContext(ctx, find.SQL, find.Args(b.bytes16(owner), name)...).Scan(&result)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	return result, err == nil, b.missingTable(ctx, err)
}

// PutStep is engine.LeaseSQL's PutStep: the row's lock keeps the lease while the result is kept.
func (b *backend) PutStep(ctx context.Context, row *engine.QueueRow, token engine.Token, owner inbox.StorageKey, name string, result []byte) (kept []byte, held bool, err error) {
	if result == nil {
		result = []byte{}
	}
	err = b.inTx(ctx, func(t *transaction) error {
		if held, err = t.exec(ctx, b.queue.Hold, row.Seq, b.bytes16(token), row.LeaseTime.Milliseconds()); err != nil || !held {
			return err
		}
		if _, err := t.exec(ctx, b.queue.PutStep, b.bytes16(owner), name, result); err != nil {
			return err
		}
		find := b.queue.FindStep
		return t.tx.QueryRowContext(ctx, find.SQL, find.Args(b.bytes16(owner), name)...).Scan(&kept)
	})
	return kept, held, b.missingTable(ctx, err)
}

// Hold is engine.LeaseSQL's Hold.
func (b *backend) Hold(ctx context.Context, row *engine.QueueRow, token engine.Token) (bool, error) {
	return b.one(ctx, b.queue.Hold, row, token, row.LeaseTime.Milliseconds())
}
