package pgxinbox_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/watermill-contrib/watermill-inbox/tests/services"
)

// TestMain finds the examples a database: DATABASE_URL is what they read. An example cannot skip itself as a test does.
func TestMain(m *testing.M) {
	flag.Parse()
	server, err := services.FindOne(context.Background(), "PostgreSQL")
	var missing *services.MissingError
	switch {
	case err == nil:
		err = os.Setenv("DATABASE_URL", server.Address)
	case errors.As(err, &missing) && !services.EnvironmentCI():
		fmt.Println("the examples are skipped:", err)
		err = flag.Set("test.skip", "^Example")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
