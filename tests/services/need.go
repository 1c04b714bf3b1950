package services

import (
	"context"
	"errors"
	"testing"
)

// need returns the address of a shared server to a test, or ends the test.
func need(t testing.TB, s service) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f, err := newFinder()
	if err != nil {
		t.Fatal(err)
	}
	server, err := f.find(ctx, s)
	if err != nil {
		giveUp(t, err)
	}
	return server.Address
}

// giveUp skips a test whose service is missing. In CI, and for any other error, it fails it.
func giveUp(t testing.TB, err error) {
	t.Helper()
	var missing *MissingError
	if errors.As(err, &missing) && !EnvironmentCI() {
		t.Skipf("services: %v", err)
	}
	t.Fatalf("services: %v", err)
}
