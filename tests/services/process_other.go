//go:build !unix

package services

import (
	"errors"
	"os"
	"os/exec"
)

var errLocked = errors.New("locked by another process")

// tryLock fails here: servers are started on Unix only. Elsewhere their addresses come from
// the environment, or from what `docker compose` was told by hand.
func tryLock(*os.File) error {
	return errors.New("servers are not started on this system: set their addresses in the environment")
}

func detach(*exec.Cmd, *account) {}
