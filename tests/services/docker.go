package services

import (
	"context"
	_ "embed"
	"errors"
	"os/exec"
	"time"
)

//go:embed compose.yaml
var composeFile string

const composeProject = "watermill-inbox-tests"

// composeUp starts one service of compose.yaml, and those it depends on.
func (f finder) composeUp(ctx context.Context, s service) error {
	if err := dockerAnswers(ctx); err != nil {
		return err
	}
	return f.state.remember(ctx, "docker-"+s.compose, f.again, func() error {
		return compose(ctx, "up", "-d", "--quiet-pull", s.compose)
	})
}

func (f finder) composeStop(ctx context.Context, s service) error {
	return compose(ctx, "stop", s.compose)
}

func compose(ctx context.Context, args ...string) error {
	args = append([]string{"compose", "-p", composeProject, "-f", "-"}, args...)
	_, err := runWithInput(ctx, nil, composeFile, "docker", args...)
	return err
}

// dockerAnswers tells an engine that runs from a client that is merely installed.
func dockerAnswers(ctx context.Context) error {
	if _, err := exec.LookPath("docker"); err != nil {
		return errors.New("not installed")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	version, err := run(ctx, nil, "docker", "info", "--format", "{{.ServerVersion}}")
	if err != nil || version == "" {
		return errors.New("no engine answers")
	}
	if _, err := run(ctx, nil, "docker", "compose", "version"); err != nil {
		return errors.New("the engine has no `docker compose`")
	}
	return nil
}
