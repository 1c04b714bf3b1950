package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// install gets Debian packages. What they start by themselves is left alone: it listens on
// the default ports, and ours do not.
func (f finder) install(ctx context.Context, packages ...string) error {
	apt, err := exec.LookPath("apt-get")
	switch {
	case err != nil:
		return errors.New("not installed on this machine, which has no apt-get")
	case os.Geteuid() != 0:
		return errors.New("not installed on this machine; only root can install it")
	}
	names := strings.Join(packages, " ")
	return f.state.remember(ctx, "install-"+strings.Join(packages, "-"), f.again, func() error {
		fmt.Fprintf(os.Stderr, "services: apt-get install %s\n", names)
		get := append([]string{
			"install", "-y", "-q", "--no-install-recommends",
			"-o", "DPkg::Lock::Timeout=300", "-o", "DPkg::Use-Pty=0",
		}, packages...)
		if _, err := run(ctx, nil, apt, get...); err == nil {
			return nil
		}
		// The usual reason is a list of packages that is missing or old. An update that
		// fails for one of many sources may still have brought what is needed.
		_, updateErr := run(ctx, nil, apt, "update", "-q")
		if _, err := run(ctx, nil, apt, get...); err != nil {
			return fmt.Errorf("apt-get install %s: %w", names, errors.Join(err, updateErr))
		}
		return nil
	})
}
