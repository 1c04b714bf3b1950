package dialect

// Queue is the SQL of the queue for one inbox. Arguments that every statement about one row begins with are its seq and
// the token of its lease.
type Queue struct {
	// StoreAll stores many messages at once where the database can: arrays of key, fingerprint, message time, consumer,
	// source, message id, topic, horizon scope, horizon id, consumer id, lane and message; its rows are the keys that were
	// new. Else empty, and Store stores one memory row (the arguments of Claim), Enqueue its queue row (key, consumer id,
	// lane, message).
	StoreAll, Store, Enqueue Statement
	// PlanOnce makes PostgreSQL plan the statements of a transaction once for a connection, and by their indexes: planning
	// costs more than their work, and a plan that was made while the queue was empty would read all of it later.
	PlanOnce string
	// LockTimeout bounds the wait for another transaction that has one of the keys; empty where nothing waits.
	LockTimeout string
	// Lease takes due rows (consumer id, limit, token, lease in milliseconds, earliest due time or nil). Where it returns
	// rows, they are those of Leased; else it takes the rows that Pick gave (seq, token, lease), and Leased reads them
	// (token).
	Pick, Lease, Leased Statement
	// Renew prolongs a lease (seq, token, milliseconds).
	Renew Statement
	// Take deletes a row (seq, token); Publish turns it into a publishing one; Delete deletes a publishing one (seq).
	Take, Publish, Delete Statement
	// Processed marks a memory row as processed (key).
	Processed Statement
	// Retry lets a row wait (seq, token, milliseconds, cause); Release gives it back without an attempt (seq, token);
	// Bury makes it dead (seq, token).
	Retry, Release, Bury Statement
	// Hold prolongs a lease, and waits for whoever has its row locked (seq, token, milliseconds); Delay puts its due time off (seq, milliseconds); Because writes
	// why it is dead (seq, cause).
	Hold, Delay, Because Statement
	// CheckLease is Check for a leased message (seq).
	CheckLease Statement
	// NextDue is how many milliseconds there are to the earliest due row of a consumer (consumer id); none: no row.
	NextDue Statement
	// LockLane lets one transaction at a time change a lane, until it ends (lane). Empty where there is one writer.
	LockLane Statement
	// Promote makes the first row of a lane ready if it is blocked and waits (consumer id, lane).
	Promote Statement
	// BlockedLanes are the lanes whose first row is blocked though it waits (consumer id).
	BlockedLanes Statement

	// FindStep reads the result of a step (owner's key, name); PutStep keeps it unless there is one (key, name, result);
	// ForgetSteps deletes those of an owner (key).
	FindStep, PutStep, ForgetSteps Statement
	// OwnOperation claims an operation for a queued message (the arguments of ClaimOperation, then the message's key), or
	// takes it over from one that is not queued any more; OwnerOf tells whose it is and whether
	// that one is queued (key). CompleteOperation makes it done
	// (key, result, messages, owner); FreeOperations gives up those of an owner (its key).
	OwnOperation, TakeOverOperation, OwnerOf, CompleteOperation, FreeOperations Statement

	// Requeue makes a dead row wait again (seq). Kill deletes a row (seq); its memory row is marked by Processed. RowOf
	// reads key, consumer id and lane of a row (seq).
	Requeue, Kill, RowOf Statement
	// Counts gives for each consumer the rows that wait, are published and are dead, and the age of the oldest waiting one
	// in milliseconds.
	Counts Statement
	// Old are the rows that are older than a time (milliseconds, limit), dead ones included, the oldest first.
	Old Statement
}

// queueTemplates are Queue before the tables are filled in.
type queueTemplates struct {
	StoreAll, Store, Enqueue, PlanOnce, LockTimeout, Pick, Lease, Leased, Renew, Take, Publish, Delete, Processed                    string
	Hold, Delay, Because, CheckLease, Retry, Release, Bury, NextDue, LockLane, Promote, BlockedLanes, FindStep, PutStep, ForgetSteps string
	OwnOperation, TakeOverOperation, OwnerOf, CompleteOperation, FreeOperations                                                      string
	Requeue, Kill, RowOf, Counts, Old                                                                                                string
}

// Queue gives the SQL of the queue for the tables of n.
func (d Dialect) Queue(n Names) Queue {
	statement := func(sql string) Statement {
		if d.positional {
			return positional(n.fill(sql))
		}
		return Statement{SQL: n.fill(sql)}
	}
	t := d.queue
	return Queue{
		StoreAll: statement(t.StoreAll), Store: statement(t.Store), Enqueue: statement(t.Enqueue), PlanOnce: t.PlanOnce, LockTimeout: t.LockTimeout,
		Pick: statement(t.Pick), Lease: statement(t.Lease), Leased: statement(t.Leased), Renew: statement(t.Renew),
		Take: statement(t.Take), Publish: statement(t.Publish), Delete: statement(t.Delete), Processed: statement(t.Processed),
		Retry: statement(t.Retry), Release: statement(t.Release), Bury: statement(t.Bury),
		Hold: statement(t.Hold), Delay: statement(t.Delay), Because: statement(t.Because), CheckLease: statement(t.CheckLease),
		NextDue: statement(t.NextDue), LockLane: statement(t.LockLane), Promote: statement(t.Promote),
		BlockedLanes: statement(t.BlockedLanes), FindStep: statement(t.FindStep), PutStep: statement(t.PutStep), ForgetSteps: statement(t.ForgetSteps),
		OwnOperation: statement(t.OwnOperation), TakeOverOperation: statement(t.TakeOverOperation), OwnerOf: statement(t.OwnerOf),
		CompleteOperation: statement(t.CompleteOperation), FreeOperations: statement(t.FreeOperations),
		Requeue: statement(t.Requeue), Kill: statement(t.Kill), RowOf: statement(t.RowOf),
		Counts: statement(t.Counts), Old: statement(t.Old),
	}
}

// Fence is the statement that ends a lease (seq, token).
func (q Queue) Fence(publish, bury bool) Statement {
	switch {
	case bury:
		return q.Bury
	case publish:
		return q.Publish
	}
	return q.Take
}

// leasedColumns are those of a leased row, with its memory row m and its record p.
const leasedColumns = `q.seq, q.key, q.consumer_id, q.lane, q.state, q.attempts, q.unfinished, q.message,
  m.fingerprint, m.consumer, m.source, m.message_id, m.topic, p.handler, p.messages`
