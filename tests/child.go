package tests

import (
	"encoding/json"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// ChildTest is the name of the test that a package which runs TestStore must have: it calls RunChild, in the processes
// that the suite starts to kill them.
const ChildTest = "TestChild"

const taskEnv = "INBOX_TEST_TASK"

// task is what a child process does.
type task struct {
	Column string            // whose harness, see Features.Child
	Name   string            // of a function in tasks
	Space  string            // the parent's environment
	DSN    string            // of its server, if not the shared one
	Args   map[string]string // for the function
}

// IsChildOf tells whether this process was started for the harness of that name, see Features.Child.
func IsChildOf(name string) bool {
	return inboxtest.IsChild() && currentTask().Column == name
}

// RunChild does what the parent process asked for. It is called where IsChildOf is true.
func RunChild(t *testing.T, features Features, harness Harness) {
	t.Helper()
	s := &suite{Features: features, open: harness}
	this := currentTask()
	run := s.tasks()[this.Name]
	require.NotNil(t, run, "no task %q", this.Name)
	run(t, this)
}

func currentTask() task {
	var this task
	_ = json.Unmarshal([]byte(os.Getenv(taskEnv)), &this)
	return this
}

// startChild starts a process that does the task on the environment, and stops at the crash point, if any.
func (s *suite) startChild(t testing.TB, env *Env, this task, point string) *inboxtest.Child {
	t.Helper()
	this.Column, this.Space = s.Child(), env.Space
	encoded, err := json.Marshal(this)
	require.NoError(t, err)
	child, err := inboxtest.StartChild(t.Context(), ChildTest, inboxtest.ChildConfig{
		Point: point, Env: []string{taskEnv + "=" + string(encoded)}, Timeout: time.Duration(Scale(30, 3)) * time.Minute,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = child.Kill() })
	return child
}

// taskFunc is what a child does.
type taskFunc func(t *testing.T, this task)

// tasks are what children can do, from the files that start them.
func (s *suite) tasks() map[string]taskFunc {
	all := map[string]taskFunc{}
	maps.Copy(all, s.copyTasks())
	maps.Copy(all, s.crashTasks())
	maps.Copy(all, s.producedTasks())
	maps.Copy(all, s.startupTasks())
	maps.Copy(all, s.twoPhaseTasks())
	maps.Copy(all, s.operationTasks())
	return all
}
