package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// runner tests mutants of the module in root.
type runner struct {
	root    string
	timeout time.Duration
	log     io.Writer // commands and their output; nil for none

	mu        sync.Mutex
	unmutated map[string]func() report // by package, test and settings: one run each
}

// testAll yields the reports in the order of the mutants, testing some at the same time.
func (r *runner) testAll(ctx context.Context, mutants []mutant, jobs int) iter.Seq[report] {
	return func(yield func(report) bool) {
		ctx, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()

		slots := make(chan struct{}, jobs)
		reports := make([]chan report, len(mutants))
		for i := range reports {
			reports[i] = make(chan report, 1)
		}
		running.Go(func() {
			for i, m := range mutants {
				slots <- struct{}{}
				running.Go(func() {
					reports[i] <- r.test(ctx, m)
					<-slots
				})
			}
		})
		for _, next := range reports {
			if !yield(<-next) {
				return
			}
		}
	}
}

// test applies the mutant, makes sure that its test passes without it, and judges.
func (r *runner) test(ctx context.Context, m mutant) report {
	start := time.Now()
	answer := r.testMutation(ctx, m)
	answer.mutant, answer.elapsed = m, time.Since(start)
	return answer
}

func (r *runner) testMutation(ctx context.Context, m mutant) report {
	dir, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return report{verdict: notRun, reason: err.Error()}
	}
	defer func() { _ = os.RemoveAll(dir) }()

	overlay, err := m.writeOverlay(r.root, dir)
	if err != nil {
		return report{verdict: notApplied, reason: err.Error()}
	}
	if answer := r.testUnmutated(ctx, m); answer.verdict != "" {
		return answer
	}
	o, err := r.goTest(ctx, m, overlay)
	if err != nil {
		return report{verdict: notRun, reason: err.Error(), output: o.output}
	}
	found, reason := judgeMutated(o)
	return report{verdict: found, reason: reason, output: o.output}
}

// testUnmutated runs a mutant's test on the library as it is, once for all mutants that
// name the same test with the same settings. An empty verdict says that it passes.
func (r *runner) testUnmutated(ctx context.Context, m mutant) report {
	key := strings.Join(slices.Concat([]string{m.pkg, m.test}, m.env, []string{""}, m.args), "\x00")
	r.mu.Lock()
	if r.unmutated == nil {
		r.unmutated = map[string]func() report{}
	}
	once, known := r.unmutated[key]
	if !known {
		once = sync.OnceValue(func() report {
			o, err := r.goTest(ctx, m, "")
			if err != nil {
				return report{verdict: notRun, reason: err.Error(), output: o.output}
			}
			found, reason := judgeUnmutated(o)
			return report{verdict: found, reason: reason, output: o.output}
		})
		r.unmutated[key] = once
	}
	r.mu.Unlock()
	return once()
}

// goTest runs the mutant's test, with the overlay if there is one. A failing test is an
// outcome, not an error.
func (r *runner) goTest(ctx context.Context, m mutant, overlay string) (outcome, error) {
	args := []string{
		"test", "-json", "-vet=off", "-count=1", "-timeout", r.timeout.String(),
		"-run", m.runExpression(), m.pkg,
	}
	args = append(args, m.args...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), m.env...)
	if overlay != "" {
		// By the environment rather than by a flag: a program that the test itself
		// builds, such as a child to be killed, has to be mutated too.
		flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -overlay=" + overlay)
		cmd.Env = append(cmd.Env, "GOFLAGS="+flags)
	}
	// An interrupt lets the go command take its test binary down with it.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second

	var stdout strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stdout
	runErr := cmd.Run()
	o, err := readOutcome(strings.NewReader(stdout.String()), m.test)
	if r.log != nil {
		r.mu.Lock()
		fmt.Fprintf(r.log, "# %s (overlay %q): %s\n%s", m.name, overlay, cmd, o.output)
		r.mu.Unlock()
	}
	if ctx.Err() != nil {
		return o, context.Cause(ctx)
	}
	var exited *exec.ExitError
	if runErr != nil && !errors.As(runErr, &exited) {
		return o, runErr
	}
	return o, err
}
