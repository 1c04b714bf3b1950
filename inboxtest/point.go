package inboxtest

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

const (
	// crashPointEnv names the point at which the process stops.
	crashPointEnv = "INBOX_CRASH_POINT"
	// childEnv is set in the processes that StartChild starts.
	childEnv = "INBOX_TEST_CHILD"
	// crashPointLine begins the line that tells the parent.
	crashPointLine = "crash-point "
)

// hits counts how often this process passed the point it is to crash at.
var hits atomic.Int64 //nolint:gochecknoglobals // a crash point belongs to the process, which dies of it

// Point is a place where a process can be killed. It does nothing, unless the environment
// variable INBOX_CRASH_POINT is name, or "name#3" for the third call with that name: then it
// prints the line "crash-point name" and never returns. All other goroutines go on until
// SIGKILL comes from whoever reads the line; see Child.
func Point(name string) {
	want, nth, _ := strings.Cut(os.Getenv(crashPointEnv), "#")
	if want != name || name == "" {
		return
	}
	n, err := strconv.ParseInt(nth, 10, 64)
	if err != nil {
		n = 1
	}
	if hits.Add(1) != n {
		return
	}
	// The line begins anew even if somebody printed half a line before.
	_, _ = os.Stdout.WriteString("\n" + crashPointLine + name + "\n")
	select {}
}

// IsChild tells whether this process was started by StartChild.
func IsChild() bool {
	return os.Getenv(childEnv) != ""
}
