package services

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// account is the user that a server runs as; nil is the user of this process.
type account struct{ uid, gid int }

// findAccount returns nil for everybody but root: database servers refuse to run as root.
func findAccount(name string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	found, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("a server needs a user of its own: %w", err)
	}
	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(found.Gid)
	if err != nil {
		return nil, err
	}
	return &account{uid: uid, gid: gid}, nil
}

// own makes the directory and gives it to the account.
func (a *account) own(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return a.chown(dir)
}

func (a *account) chown(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// command prepares a command in a session of its own, so that neither Ctrl-C nor the end of
// the terminal reaches what it starts. Its directory is one that every account can enter.
func command(ctx context.Context, as *account, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	detach(cmd, as)
	return cmd
}

// run runs a command to its end and returns what it printed. The output goes through a file
// rather than a pipe: a daemon that the command leaves behind inherits it, and `go test`
// waits until nobody holds a pipe of its tests any more.
func run(ctx context.Context, as *account, name string, args ...string) (string, error) {
	return runWithInput(ctx, as, "", name, args...)
}

func runWithInput(ctx context.Context, as *account, input, name string, args ...string) (string, error) {
	out, err := os.CreateTemp("", "watermill-inbox-output-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(out.Name()); _ = out.Close() }()
	cmd := command(ctx, as, name, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if input != "" {
		cmd.Stdin = strings.NewReader(input)
	}
	runErr := cmd.Run()
	printed, err := readFrom(out)
	if err != nil {
		return "", err
	}
	if runErr != nil {
		return printed, fmt.Errorf("%s: %w: %s", filepath.Base(name), runErr, tail(printed, 600))
	}
	return printed, nil
}

// daemon starts a server that stays when this process ends, with its output in a log file.
func daemon(ctx context.Context, as *account, logFile, name string, args ...string) error {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := command(context.WithoutCancel(ctx), as, name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// isZombie tells whether the process named in the file's first line has ended, but is still in
// the process table.
func isZombie(pidFile string) bool {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return false
	}
	pid, _, _ := strings.Cut(string(text), "\n")
	status, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(pid), "status"))
	return err == nil && strings.Contains(string(status), "\nState:\tZ")
}

func readFrom(f *os.File) (string, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	text, err := io.ReadAll(f)
	return strings.TrimSpace(string(text)), err
}

// tail keeps the end of a long text, where the reason of a failure stands.
func tail(text string, n int) string {
	text = strings.TrimSpace(text)
	if len(text) > n {
		text = "…" + strings.ToValidUTF8(text[len(text)-n:], "")
	}
	return text
}

// logTail returns the end of a log for an error message.
func logTail(file string) string {
	text, _ := os.ReadFile(file)
	return tail(string(text), 600)
}

// findBinaries returns the directory that holds all of the names: first the one in PATH, then
// the globs, the highest version first. It returns "" if there is none.
func findBinaries(globs []string, names ...string) string {
	var dirs []string
	if path, err := exec.LookPath(names[0]); err == nil {
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, glob := range globs {
		found, _ := filepath.Glob(glob)
		sort.Slice(found, func(i, j int) bool { return number(found[i]) > number(found[j]) })
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		if hasAll(dir, names) {
			return dir
		}
	}
	return ""
}

func hasAll(dir string, names []string) bool {
	for _, name := range names {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// number reads the first number of a path: the version in /usr/lib/postgresql/15/bin.
func number(path string) int {
	start := strings.IndexAny(path, "0123456789")
	if start < 0 {
		return 0
	}
	end := start
	for end < len(path) && path[end] >= '0' && path[end] <= '9' {
		end++
	}
	n, _ := strconv.Atoi(path[start:end])
	return n
}
