package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// failures are all the ways in which a delivery can fail here.
func (s *suite) failures() []failure {
	const claim, handle, commit = inbox.PhaseClaim, inbox.PhaseHandle, inbox.PhaseCommit
	failures := []failure{
		{name: "NoID", phase: inbox.PhaseIdentify, outcome: inbox.OutcomeRefused, is: inbox.ErrNoMessageID, provoke: s.deliverOnly(inbox.Config{})},
		{name: "IDTooLong", phase: inbox.PhaseIdentify, outcome: inbox.OutcomeRefused, is: inbox.ErrMessageIDTooLong, says: []string{"4097 bytes"}, provoke: s.deliverOnly(inbox.Config{})},
		{name: "IDRefused", phase: inbox.PhaseIdentify, outcome: inbox.OutcomeRefused, is: inbox.ErrMessageIDRefused, says: []string{errTenant.Error()}, provoke: s.deliverOnly(refusing())},
		{name: "NoConsumer", phase: inbox.PhaseIdentify, outcome: inbox.OutcomeRefused, is: inbox.ErrNoConsumer, provoke: s.deliverOnly(inbox.Config{Consumer: func(*message.Message) string { return "" }})},
		{name: "InFlight", phase: claim, outcome: inbox.OutcomeInFlight, is: inbox.ErrInFlight, says: []string{"InFlightWait"}, provoke: s.failInFlight(true)},
		{name: "InFlightAtStart", phase: claim, outcome: inbox.OutcomeInFlight, is: inbox.ErrInFlight, says: []string{"InFlightWait"}, provoke: s.failInFlight(false)},
		{name: "Mismatch", phase: claim, outcome: inbox.OutcomeMismatch, is: inbox.ErrMismatch, provoke: s.failMismatch},
		{name: "Late", phase: claim, outcome: inbox.OutcomeLate, is: inbox.ErrLate, provoke: s.failLate},
		{name: "Collision", phase: claim, outcome: inbox.OutcomeCollision, is: inbox.ErrKeyCollision, says: []string{"another-id"}, provoke: s.failCollision},
		{name: "KeyScheme", phase: claim, outcome: inbox.OutcomeFailed, is: inbox.ErrKeyScheme, provoke: s.failKeyScheme},
		{name: "MissingTable", phase: claim, outcome: inbox.OutcomeFailed, is: inbox.ErrSchema, cause: true, says: []string{"Migrate"}, provoke: s.failMissingTable},
		{name: "Handler", phase: handle, outcome: inbox.OutcomeFailed, is: errHandler, provoke: s.failIn(func(*rig, context.Context) error { return errHandler })},
		{name: "HandlerSQL", phase: handle, outcome: inbox.OutcomeFailed, cause: true, says: []string{"no_such_table"}, provoke: s.failIn(func(r *rig, ctx context.Context) error {
			return fmt.Errorf("book: %w", r.Exec(ctx, "INSERT INTO no_such_table VALUES (1)"))
		})},
		{name: "HandlerEndsTheTransaction", phase: handle, outcome: inbox.OutcomeFailed, is: inbox.ErrTxManaged, says: []string{"Rollback"}, provoke: s.failIn(func(r *rig, ctx context.Context) error {
			return r.Exec(ctx, "ROLLBACK")
		})},
		{name: "Nested", phase: handle, outcome: inbox.OutcomeFailed, is: inbox.ErrNested, says: []string{"the outer message is"}, provoke: s.failNested},
	}
	if s.AbortsOnError {
		failures = append(failures, failure{name: "SwallowedSQL", phase: handle, outcome: inbox.OutcomeFailed, is: inbox.ErrTxAborted, provoke: s.failIn(func(r *rig, ctx context.Context) error {
			if r.Exec(ctx, "INSERT INTO no_such_table VALUES (1)") == nil {
				return errors.New("no SQL error")
			}
			return nil
		})})
	}
	if s.DeferredConstraints {
		failures = append(failures, failure{name: "Commit", phase: commit, outcome: inbox.OutcomeFailed, cause: true, provoke: s.failCommit})
	}
	if s.ReadOnly != "" {
		failures = append(failures, failure{name: "ReadOnly", phase: claim, outcome: inbox.OutcomeFailed, is: inbox.ErrReadOnly, cause: true, provoke: s.failReadOnly})
	}
	if len(s.Isolation) > 1 {
		failures = append(failures, failure{name: "Serialization", phase: handle, outcome: inbox.OutcomeFailed, is: inbox.ErrSerialization, cause: true, provoke: s.failSerialization})
	}
	if s.Server {
		failures = append(failures,
			failure{name: "Unavailable", phase: claim, outcome: inbox.OutcomeFailed, is: inbox.ErrUnavailable, provoke: s.failUnavailable},
			failure{name: "CommitUnknown", phase: commit, outcome: inbox.OutcomeFailed, is: inbox.ErrCommitUnknown, provoke: s.failCommitUnknown},
		)
	}
	return failures
}

var errTenant = errors.New("unknown tenant")

func refusing() inbox.Config {
	return inbox.Config{Identity: func(msg *message.Message) (string, string, error) { return "", msg.UUID, errTenant }}
}

// deliverFailing delivers the message with the id to the handler that is to be named.
func (r *rig) deliverFailing(id string, fn func(ctx context.Context) error) error {
	msg := message.NewMessage(id, message.Payload("pay 10"))
	return r.deliver(failingHandler, msg, func(msg *message.Message) error { return fn(msg.Context()) })
}

// notCalled is the handler of a message that must not reach it.
func notCalled(t testing.TB) func(context.Context) error {
	t.Helper()
	return func(context.Context) error {
		t.Error("the handler was called")
		return nil
	}
}

// deliverOnly needs nothing but the message to fail.
func (s *suite) deliverOnly(config inbox.Config) func(*testing.T, string) (*rig, error) {
	return func(t *testing.T, id string) (*rig, error) {
		r := s.failing(t, Options{}, config)
		return r, r.deliverFailing(id, notCalled(t))
	}
}

// failIn fails in the handler.
func (s *suite) failIn(fn func(r *rig, ctx context.Context) error) func(*testing.T, string) (*rig, error) {
	return func(t *testing.T, id string) (*rig, error) {
		r := s.failing(t, Options{}, inbox.Config{})
		err := r.deliverFailing(id, func(ctx context.Context) error { return fn(r, ctx) })
		require.Equal(t, 0, r.Rows(t), "a failed message is not remembered")
		return r, err
	}
}

// failInFlight delivers a copy to another process's store while the first one is in its handler; warm tells whether
// that store has handled messages before, or just started.
func (s *suite) failInFlight(warm bool) func(*testing.T, string) (*rig, error) {
	return func(t *testing.T, id string) (*rig, error) {
		first := s.failing(t, Options{}, inbox.Config{})
		require.NoError(t, first.handle(newMessage("pay 20"), first.writes("first")))
		r := s.failing(t, Options{Space: first.Space, Config: sqlinbox.Config{InFlightWait: -1}}, inbox.Config{})
		if warm {
			require.NoError(t, r.handle(newMessage("pay 30"), r.writes("second")))
		}
		var (
			err  error
			took time.Duration
		)
		require.NoError(t, first.deliverFailing(id, func(ctx context.Context) error {
			began := time.Now()
			err = r.deliverFailing(id, notCalled(t))
			took = time.Since(began)
			return first.Write(ctx, "pay")
		}))
		require.Less(t, took, 5*time.Second, "InFlightWait is -1")
		return r, err
	}
}

func (s *suite) failMismatch(t *testing.T, id string) (*rig, error) {
	r := s.failing(t, Options{}, inbox.Config{})
	require.NoError(t, r.handle(message.NewMessage(id, message.Payload("pay 20")), r.writes("pay")))
	return r, r.deliverFailing(id, notCalled(t))
}

// failLate moves the horizon to the time of a message that is younger than the one with the id.
func (s *suite) failLate(t *testing.T, id string) (*rig, error) {
	time.Sleep(2 * time.Millisecond)
	r := s.failing(t, Options{}, inbox.Config{})
	require.NoError(t, r.handle(newMessage("pay 20"), r.writes("pay")))
	r.mustExec(t, "INSERT INTO "+r.Horizons+" (id, consumer, source, scope, horizon) SELECT "+r.Bytes16(inbox.Key{Consumer: failingConsumer}.Storage())+", consumer, source, '', message_time FROM "+r.Memory)
	return r, r.deliverFailing(id, notCalled(t))
}

func (s *suite) failCollision(t *testing.T, id string) (*rig, error) {
	r := s.failing(t, Options{}, inbox.Config{})
	require.NoError(t, r.handle(message.NewMessage(id, message.Payload("pay 10")), r.writes("pay")))
	r.mustExec(t, "UPDATE "+r.Memory+" SET message_id = 'another-id'")
	return r, r.deliverFailing(id, notCalled(t))
}

func (s *suite) failKeyScheme(t *testing.T, id string) (*rig, error) {
	first := s.failing(t, Options{}, inbox.Config{})
	require.NoError(t, first.handle(newMessage("pay 10"), first.writes("pay")))
	r := s.failing(t, Options{Space: first.Space}, inbox.Config{KeyTime: func(*message.Message) time.Time { return time.Now() }})
	return r, r.deliverFailing(id, notCalled(t))
}

func (s *suite) failMissingTable(t *testing.T, id string) (*rig, error) {
	r := s.failing(t, Options{}, inbox.Config{})
	require.NoError(t, r.handle(newMessage("pay 10"), r.writes("pay")))
	r.mustExec(t, "DROP TABLE "+r.Memory)
	return r, r.deliverFailing(id, notCalled(t))
}

// failNested enters the same inbox with another message, which makes the handler fail.
func (s *suite) failNested(t *testing.T, id string) (*rig, error) {
	r := s.failing(t, Options{}, inbox.Config{})
	return r, r.deliverFailing(id, func(ctx context.Context) error {
		inner := newMessage("pay 20")
		inner.SetContext(ctx)
		return r.handle(inner, func(*message.Message) ([]*message.Message, error) { return nil, notCalled(t)(ctx) })
	})
}

// failCommit leaves a dangling reference to the check at COMMIT.
func (s *suite) failCommit(t *testing.T, id string) (*rig, error) {
	r := s.failing(t, Options{}, inbox.Config{})
	table := strings.TrimSuffix(r.Effects, "effects")
	r.mustExec(t, "CREATE TABLE "+table+"accounts (id INTEGER PRIMARY KEY)")
	r.mustExec(t, "CREATE TABLE "+table+"bookings (account INTEGER REFERENCES "+table+"accounts (id) DEFERRABLE INITIALLY DEFERRED)")
	err := r.deliverFailing(id, func(ctx context.Context) error {
		return r.Exec(ctx, "INSERT INTO "+table+"bookings VALUES (7)")
	})
	require.Equal(t, 0, r.Rows(t), "a message whose commit failed is not remembered")
	return r, err
}

// failReadOnly makes the only connection of the pool read-only, as a role or a fail-over would.
func (s *suite) failReadOnly(t *testing.T, id string) (*rig, error) {
	r := s.failing(t, Options{PoolSize: 1}, inbox.Config{})
	require.NoError(t, r.handle(newMessage("pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		return nil, r.Exec(msg.Context(), s.ReadOnly)
	}))
	return r, r.deliverFailing(id, notCalled(t))
}

// failSerialization changes a row behind the back of the handler's snapshot.
func (s *suite) failSerialization(t *testing.T, id string) (*rig, error) {
	r := s.failing(t, Options{Config: sqlinbox.Config{Isolation: sql.LevelRepeatableRead, TxRetries: -1}}, inbox.Config{})
	r.mustExec(t, "INSERT INTO "+r.Effects+" (name) VALUES ('balance')")
	return r, r.deliverFailing(id, func(ctx context.Context) error {
		if err := r.Exec(ctx, "SELECT count(*) FROM "+r.Effects); err != nil {
			return err
		}
		r.mustExec(t, "UPDATE "+r.Effects+" SET name = 'theirs'")
		return r.Exec(ctx, "UPDATE "+r.Effects+" SET name = 'ours'")
	})
}

// failUnavailable cuts the network.
func (s *suite) failUnavailable(t *testing.T, id string) (*rig, error) {
	r, proxy := s.failingBehindProxy(t)
	proxy.Refuse(true)
	proxy.CutAll()
	return r, r.deliverFailing(id, notCalled(t))
}

// failCommitUnknown loses the reply to COMMIT.
func (s *suite) failCommitUnknown(t *testing.T, id string) (*rig, error) {
	r, proxy := s.failingBehindProxy(t)
	proxy.DropCommitReply(1)
	return r, r.deliverFailing(id, func(ctx context.Context) error { return r.Write(ctx, "pay") })
}

func (s *suite) failingBehindProxy(t *testing.T) (*rig, *inboxtest.Proxy) {
	t.Helper()
	var proxy *inboxtest.Proxy
	r := s.failing(t, Options{Via: func(address string) string {
		var err error
		proxy, err = inboxtest.NewProxy(address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = proxy.Close() })
		return proxy.Addr()
	}}, inbox.Config{})
	require.NoError(t, r.handle(newMessage("pay 20"), r.writes("pay")))
	return r, proxy
}

// mustExec executes SQL outside of any message.
func (e *Env) mustExec(t testing.TB, query string) {
	t.Helper()
	_, err := e.DB.ExecContext(context.Background(), query)
	require.NoError(t, err, query)
}
