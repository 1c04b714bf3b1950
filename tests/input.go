package tests

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// inputs are the cases about a database that is not as it should be: each is told by name, at construction and at the
// message, and the message is neither acked nor lost.
func (s *suite) inputs() []testCase {
	cases := []testCase{
		{"I3_MissingTablesNameTheCommand", s.missingTables},
		{"I3_MissingTable", s.missingTable},
		{"I3_VersionOfTheTables", s.tableVersions},
		{"I3_KeySchemeIsFixed", s.keySchemeIsFixed},
	}
	if s.ReadOnly != "" {
		cases = append(cases, testCase{"I3_ReadOnlyDatabase", s.readOnlyDatabase})
	}
	return cases
}

// keptOut delivers a message that must not reach its handler, with a limit to the wait.
func (r *rig) keptOut(t testing.TB, msg *message.Message) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	again := msg.Copy()
	again.SetContext(ctx)
	effects := r.Total(t)
	err := r.handle(again, func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	})
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "it hung: %v", err)
	require.True(t, inbox.IsTransient(err), "the message stays in the broker: %v", err)
	require.Equal(t, 0, r.InUse(), "connections in use")
	require.Equal(t, effects, r.Total(t))
	return err
}

func (s *suite) missingTables(t *testing.T) {
	for name, known := range map[string]bool{"NewConsumer": false, "KnownConsumer": true} {
		t.Run(name, func(t *testing.T) {
			r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
			if known {
				require.NoError(t, r.handle(newMessage("pay 10"), r.writes("first")))
			}
			ctx := context.Background()
			require.NoError(t, sqlinbox.MigrateDown(ctx, r.DB, r.Config, 0))

			msg := newMessage("pay 10")
			err := r.keptOut(t, msg)
			require.ErrorIs(t, err, inbox.ErrSchema)
			require.ErrorContains(t, err, "Migrate")
			require.Error(t, r.Cause(err), "the database's own error")

			_, err = r.Open(ctx, sqlinbox.Config{})
			require.ErrorIs(t, err, inbox.ErrSchema)
			require.ErrorContains(t, err, "Migrate")
			require.ErrorContains(t, err, "watermill_inbox_consumers", "it names what is missing")
			require.Equal(t, 0, r.InUse())

			_, err = r.Open(ctx, sqlinbox.Config{InitializeSchema: true})
			require.NoError(t, err)
			require.NoError(t, r.handle(msg.Copy(), r.writes("pay")), "the same message, the same store")
			require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
			require.Equal(t, 1, r.Count(t, "pay"))
		})
	}
}

// missingTable takes away one table at a time.
func (s *suite) missingTable(t *testing.T) {
	for _, name := range []string{"Memory", "Consumers", "Horizons"} {
		t.Run(name, func(t *testing.T) {
			r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
			table := map[string]string{"Memory": r.Memory, "Consumers": r.Consumers, "Horizons": r.Horizons}[name]
			schema, plain := "", strings.Trim(table, `"`)
			if at := strings.LastIndex(table, "."); at >= 0 {
				schema, plain = table[:at+1], strings.Trim(table[at+1:], `"`)
			}
			r.mustExec(t, "ALTER TABLE "+table+" RENAME TO elsewhere")

			msg := newMessage("pay 10")
			err := r.keptOut(t, msg)
			require.ErrorIs(t, err, inbox.ErrSchema)
			require.ErrorContains(t, err, "Migrate")
			_, err = r.Open(context.Background(), sqlinbox.Config{})
			require.ErrorIs(t, err, inbox.ErrSchema)
			require.ErrorContains(t, err, plain)

			r.mustExec(t, "ALTER TABLE "+schema+"elsewhere RENAME TO "+plain)
			require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
			require.Equal(t, 1, r.Count(t, "pay"))
		})
	}
}

func (s *suite) tableVersions(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	ctx := context.Background()
	latest := r.scalar(t, "SELECT max(version) FROM "+r.Migrations)
	note := func(version int) {
		r.mustExec(t, "INSERT INTO "+r.Migrations+" (version, name) VALUES ("+strconv.Itoa(version)+", 'later')")
	}
	handles := func(name string) {
		store, err := r.Open(ctx, sqlinbox.Config{})
		require.NoError(t, err)
		env := *r.Env
		env.Store = store
		newer := newRig(t, &env, inbox.Config{})
		require.NoError(t, newer.handle(newMessage("pay 10"), newer.writes(name)))
		require.Equal(t, 1, r.Count(t, name))
	}

	note(latest + 1)
	handles("newer")
	_, err := r.Open(ctx, sqlinbox.Config{InitializeSchema: true})
	require.NoError(t, err)
	require.Equal(t, latest+1, r.scalar(t, "SELECT max(version) FROM "+r.Migrations), "a newer version is left alone")

	note(latest + 3)
	for _, initialize := range []bool{false, true} {
		_, err = r.Open(ctx, sqlinbox.Config{InitializeSchema: initialize})
		require.ErrorIs(t, err, inbox.ErrSchema, "a gap in the versions")
		require.ErrorContains(t, err, "from version "+strconv.Itoa(latest+1)+" to "+strconv.Itoa(latest+3))
	}
	r.mustExec(t, "DELETE FROM "+r.Migrations+" WHERE version >= "+strconv.Itoa(latest))
	_, err = r.Open(ctx, sqlinbox.Config{})
	require.ErrorIs(t, err, inbox.ErrSchema, "an older version")
	require.ErrorContains(t, err, "Migrate")
	require.ErrorContains(t, err, "version "+strconv.Itoa(latest-1))
	require.ErrorContains(t, err, "needs "+strconv.Itoa(latest))

	note(latest)
	handles("current")
}

// readOnlyDatabase makes the only connection refuse to write. The message is handled where writing is possible.
func (s *suite) readOnlyDatabase(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	require.NoError(t, r.handle(newMessage("pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		return nil, r.Exec(msg.Context(), s.ReadOnly)
	}))
	msg := newMessage("pay 10")
	stranger := newRig(t, r.Env, inbox.Config{Consumer: func(*message.Message) string { return "stranger" }})
	for _, r := range []*rig{r, stranger} {
		err := r.keptOut(t, msg)
		require.ErrorIs(t, err, inbox.ErrReadOnly)
		require.Error(t, r.Cause(err), "the database's own error")
	}
	for _, initialize := range []bool{false, true} {
		_, err := r.Open(context.Background(), sqlinbox.Config{InitializeSchema: initialize})
		require.ErrorIs(t, err, inbox.ErrReadOnly, "at construction")
	}
	require.Equal(t, 0, r.InUse())

	other := s.rig(t, Options{Space: r.Space}, inbox.Config{})
	require.NoError(t, other.handle(msg.Copy(), other.writes("pay")))
	require.Equal(t, 1, other.Count(t, "pay"))
}

// keySchemeIsFixed adds KeyTime to a consumer that has a memory, and takes it away from another one: the same message
// would get another key, and a second effect.
func (s *suite) keySchemeIsFixed(t *testing.T) {
	withTime := inbox.Config{KeyTime: func(*message.Message) time.Time { return time.UnixMilli(1_700_000_000_000) }}
	for name, configs := range map[string][2]inbox.Config{"Added": {{}, withTime}, "Removed": {withTime, {}}} {
		t.Run(name, func(t *testing.T) {
			r := s.rig(t, Options{}, configs[0])
			msg := message.NewMessage("order-42", message.Payload("pay 10"))
			require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
			for where, changed := range map[string]*rig{
				"the same store":  newRig(t, r.Env, configs[1]),
				"another process": s.rig(t, Options{Space: r.Space}, configs[1]),
			} {
				for _, m := range []*message.Message{msg, newMessage("pay 20")} {
					require.ErrorIs(t, changed.keptOut(t, m), inbox.ErrKeyScheme, where)
				}
			}
			require.NoError(t, r.handle(msg.Copy(), r.writes("pay")))
			require.Equal(t, 1, r.events.count(inbox.OutcomeDuplicate))
			require.Equal(t, 1, r.Count(t, "pay"))
			require.Equal(t, 1, r.Rows(t))
		})
	}
}
