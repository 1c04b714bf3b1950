package tests

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// startup are the cases about schema and start-up (H). H2 is the whole suite behind a pooler, so it has no case here.
func (s *suite) startup() []testCase {
	return []testCase{
		{"H1_ProcessesMigrateAtOnce", s.h1},
		{"H1_MigrationKilledMidway", s.h1killed},
	}
}

// startupTasks are what the children of these cases do.
func (s *suite) startupTasks() map[string]taskFunc {
	return map[string]taskFunc{"migrate": s.migrateRounds, "migrate once": s.migrateOnce}
}

const migrators = 20 // processes

// h1 lets processes start on an empty database at the same moment, again and again. They stay alive from round to
// round, each with its pool still open while the parent looks at what they left behind.
func (s *suite) h1(t *testing.T) {
	rounds := Scale(50, 20)
	env := s.open(t, Options{OwnDatabase: true})
	versions := s.versions(t, env)
	require.Positive(t, versions)

	b := newBarrier(t, migrators)
	for range migrators {
		b.children = append(b.children, s.startChild(t, env, task{Name: "migrate", DSN: env.DSN, Args: map[string]string{
			"barrier": b.addr(), "rounds": strconv.Itoa(rounds),
		}}, ""))
	}
	b.accept(t)
	began := time.Now()
	for round := range rounds {
		b.pass(t) // all are ready to start
		b.pass(t) // all have started
		space := s.open(t, Options{Space: roundSpace(env.Space, round), DSN: env.DSN, Unmigrated: true})
		require.Equal(t, versions, s.versions(t, space), "round %d: versions", round)
		locks, err := space.Locks(t.Context())
		require.NoError(t, err)
		require.Equal(t, 0, locks, "round %d: locks that are left", round)
		b.pass(t)
	}
	t.Logf("%d rounds of %d processes in %v", rounds, migrators, time.Since(began).Round(time.Millisecond))
	for _, child := range b.children {
		require.NoError(t, child.Wait(t.Context()))
	}
}

// versions counts the applied migrations, which must be numbered without a gap.
func (s *suite) versions(t testing.TB, env *Env) int {
	t.Helper()
	n := env.scalar(t, "SELECT count(*) FROM "+env.Migrations)
	require.Equal(t, n, env.scalar(t, "SELECT count(DISTINCT version) FROM "+env.Migrations))
	require.Equal(t, n, env.scalar(t, "SELECT max(version) FROM "+env.Migrations))
	return n
}

func roundSpace(space string, round int) string { return fmt.Sprintf("%s_r%d", space, round) }

// migrateRounds is one of the processes of h1.
func (s *suite) migrateRounds(t *testing.T, this task) {
	rounds, err := strconv.Atoi(this.Args["rounds"])
	require.NoError(t, err)
	parent := dialBarrier(t, this.Args["barrier"])
	for round := range rounds {
		// A subtest, so that the pool is closed at the end of the round.
		ok := t.Run(strconv.Itoa(round), func(t *testing.T) {
			env := s.open(t, Options{Space: roundSpace(this.Space, round), DSN: this.DSN, PoolSize: 2, Unmigrated: true})
			parent.wait(t)
			_, err := env.Open(t.Context(), sqlinbox.Config{InitializeSchema: true})
			require.NoError(t, err)
			parent.wait(t)
			parent.wait(t)
		})
		require.True(t, ok, "round %d", round)
	}
}

// h1killed kills a process with its migration done and not committed. The next start must neither wait for the dead
// nor find half of the tables.
func (s *suite) h1killed(t *testing.T) {
	env := s.open(t, Options{OwnDatabase: true, Unmigrated: true})
	child := s.startChild(t, env, task{Name: "migrate once", DSN: env.DSN}, "commit")
	ctx, cancel := context.WithTimeout(context.Background(), barrierTimeout)
	defer cancel()
	require.NoError(t, child.WaitPoint(ctx))
	locks, err := env.Locks(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, locks, "the child is inside its migration")
	require.NoError(t, child.Kill())

	_, err = env.Open(ctx, sqlinbox.Config{})
	require.ErrorIs(t, err, inbox.ErrSchema, "nothing of the migration is there")
	began := time.Now()
	env.Store, err = env.Open(ctx, sqlinbox.Config{InitializeSchema: true})
	require.NoError(t, err)
	require.Less(t, time.Since(began), 5*time.Second, "the dead process holds nobody up")
	s.versions(t, env)
	locks, err = env.Locks(ctx)
	require.NoError(t, err)
	require.Equal(t, 0, locks)

	r := newRig(t, env, inbox.Config{})
	require.NoError(t, r.handle(newMessage("pay 10"), r.writes("pay")))
	require.Equal(t, 1, r.Count(t, "pay"))
}

// migrateOnce is the process that is killed.
func (s *suite) migrateOnce(t *testing.T, this task) {
	env := s.open(t, Options{
		Space: this.Space, DSN: this.DSN, Unmigrated: true,
		BeforeCommit: func() { inboxtest.Point("commit") },
	})
	_, err := env.Open(t.Context(), sqlinbox.Config{InitializeSchema: true})
	require.NoError(t, err)
}
