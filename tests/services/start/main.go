// Command start finds or starts every server that the tests need, before they run, and prints
// what each is. Without it the first test that needs a server starts it.
//
//	go run ./tests/services/start          find or start all
//	go run ./tests/services/start -stop    stop what was started, and keep its data
//	go run ./tests/services/start -address PostgreSQL
//	                                       print only the address of one
//
// What it found is also written to build/services.json. It exits with 1 if something is
// missing and CI=true, or if the service asked for by -address is.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

func main() {
	stop := flag.Bool("stop", false, "stop the servers that were started, and keep their data")
	address := flag.String("address", "", "print only the address of the `service` of this name")
	out := flag.String("out", filepath.Join("build", "services.json"), "`file` for what was found")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	var err error
	switch {
	case *stop:
		err = stopAll(ctx)
	case *address != "":
		err = printAddress(ctx, *address)
	default:
		err = startAll(ctx, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startAll fails for what is missing only where CI asks for everything.
func startAll(ctx context.Context, out string) error {
	servers, missing, err := services.Find(ctx)
	for _, s := range servers {
		source := s.Source
		if source == services.SourceRunning && s.StartedBy != "" {
			source += ", by " + s.StartedBy
		}
		fmt.Printf("%-11s %s (%s) %s\n", s.Name, s.Address, source, s.Version)
	}
	if err := errors.Join(err, write(out, servers)); err != nil {
		return err
	}
	for _, m := range missing {
		fmt.Println(m)
	}
	switch {
	case len(missing) == 0:
		return nil
	case services.EnvironmentCI():
		return errors.New("CI=true: every service is needed")
	default:
		fmt.Println("The tests that need it are skipped, and listed at the end.")
		return nil
	}
}

func stopAll(ctx context.Context) error {
	stopped, err := services.Stop(ctx)
	if err == nil && len(stopped) == 0 {
		fmt.Println("nothing runs")
	}
	for _, name := range stopped {
		fmt.Println("stopped", name)
	}
	return err
}

func printAddress(ctx context.Context, name string) error {
	server, err := services.FindOne(ctx, name)
	if err == nil {
		fmt.Println(server.Address)
	}
	return err
}

func write(file string, servers []services.Server) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // addresses carry & and stay readable
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(servers); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return fmt.Errorf("write what was found: %w", err)
	}
	return os.WriteFile(file, text.Bytes(), 0o600)
}
