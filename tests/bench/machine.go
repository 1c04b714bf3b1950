package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5"
)

// fact is one line about where the numbers come from.
type fact struct{ name, value string }

func describeMachine(ctx context.Context, dsn string) ([]fact, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	facts := []fact{
		{"cores", fmt.Sprintf("%d (%s), shared by client and server", runtime.NumCPU(), processor())},
		{"load before the run", load()},
		{"Go", runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
	}
	var version string
	if err := conn.QueryRow(ctx, "SELECT version()").Scan(&version); err != nil {
		return nil, err
	}
	facts = append(facts, fact{"server", version})
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size"} {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&value); err != nil {
			return nil, err
		}
		facts = append(facts, fact{setting, value})
	}
	return facts, nil
}

// processor is the processor's name where the system tells it as Linux does.
func processor() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// load is how many processes wanted to run in the last minute, where the system tells it as Linux does: with much more
// than 0 the ratios are noisy.
func load() string {
	average, _ := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(average)); len(fields) > 0 {
		return fields[0]
	}
	return "unknown"
}
