// Command bench measures what the inbox costs on PostgreSQL, as ratios: the inbox, the bare transaction and the
// textbook algorithm take turns in one run, in shuffled order, and each round gives one ratio. Many short rounds are
// better than few long ones: what else happens on the machine then meets all contenders of a round alike, or few rounds.
//
//	go run ./tests/bench -sizes                     what docs/benchmarks.md shows
//	go run ./tests/bench                            without the large tables
//	go run ./tests/bench -quick                     a look, in three minutes
//	go run ./tests/bench -only 'loopback.*/pgx'     some contenders, with those they are measured against
//	go run ./tests/bench -sizes -only sizes/        the large tables alone (smaller ones with -quick)
//	go run ./tests/bench -sizes -only leases/       the large queues alone (smaller ones with -quick)
//	go run ./tests/bench -sizes -write docs/benchmarks.md
//
// It finds or starts a server as the tests do. Nothing else should run on the machine meanwhile.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// settings are what the command line says.
type settings struct {
	rounds  int
	slot    time.Duration // how long one contender works in one round
	only    *regexp.Regexp
	sizes   bool
	quick   bool
	write   string
	profile string
}

func parse() (settings, error) {
	var s settings
	rounds := flag.Int("rounds", 21, "how many `rounds`, each with every contender once")
	seconds := flag.Float64("seconds", 0.4, "how many `seconds` a contender works in a round")
	flag.BoolVar(&s.quick, "quick", false, "5 rounds of 0.2 seconds, unless set, and small tables")
	flag.BoolVar(&s.sizes, "sizes", false, "measure claims and leases against table size too: up to 5 million rows are loaded, some minutes")
	only := flag.String("only", "", "a `regexp` for comparison/contender")
	flag.StringVar(&s.write, "write", "", "write the output to a `file` as well")
	flag.StringVar(&s.profile, "cpuprofile", "", "write a CPU profile to a `file`; its label contender tells whose work it is")
	flag.Parse()

	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if s.quick && !given["rounds"] {
		*rounds = 5
	}
	if s.quick && !given["seconds"] {
		*seconds = 0.2
	}
	s.rounds, s.slot = *rounds, time.Duration(*seconds*float64(time.Second))
	if s.rounds < 1 || s.slot <= 0 || flag.NArg() > 0 {
		return s, fmt.Errorf("bench: need at least one round, some time and no arguments: see -help")
	}
	var err error
	s.only, err = regexp.Compile(*only)
	return s, err
}

func main() {
	s, err := parse()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err = run(ctx, s)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	server, err := services.FindOne(ctx, "PostgreSQL")
	if err != nil {
		return err
	}
	machine, err := describeMachine(ctx, server.Address)
	if err != nil {
		return err
	}
	if s.profile != "" {
		file, err := os.Create(s.profile)
		if err != nil {
			return err
		}
		defer file.Close() //nolint:errcheck // a profile that is cut shows when it is read
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}

	var written strings.Builder
	r := report{io.MultiWriter(os.Stdout, &written)}
	r.begin(machine, commandLine())
	for _, c := range chosen(comparisons(), s.only) {
		results, err := measure(ctx, server.Address, c, s)
		if err != nil {
			return fmt.Errorf("bench: %s: %w", c.name, err)
		}
		r.comparison(c, results)
	}
	wakeups, err := measureWakeups(ctx, server.Address, chosenWakeups(wakeups(s.quick), s.only))
	if err != nil {
		return fmt.Errorf("bench: wake-up: %w", err)
	}
	r.wakeups(wakeups)
	costs, err := countAll(ctx, server.Address, chosenContenders(counted(), s.only))
	if err != nil {
		return fmt.Errorf("bench: count: %w", err)
	}
	r.costs(costs)
	if s.sizes && chosenSizes(s.only) {
		tables, err := measureSizes(ctx, server.Address, newSizing(s.quick))
		if err != nil {
			return fmt.Errorf("bench: sizes: %w", err)
		}
		r.sizes(tables)
	}
	if s.sizes && chosenLeases(s.only) {
		queues, err := measureLeases(ctx, server.Address, newLeasing(s.quick))
		if err != nil {
			return fmt.Errorf("bench: leases: %w", err)
		}
		r.leases(queues)
	}
	if s.write == "" {
		return nil
	}
	return os.WriteFile(s.write, []byte(written.String()), 0o644)
}

// commandLine is how to run this again.
func commandLine() string {
	words := []string{"go run ./tests/bench"}
	for _, arg := range os.Args[1:] {
		if strings.ContainsAny(arg, " *|()[]$\\'") {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}
