package tests

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// TestStore runs the conformance suite: every case in an environment of its own, in parallel.
func TestStore(t *testing.T, features Features, harness Harness) {
	t.Helper()
	t.Run(features.Name, func(t *testing.T) {
		s := &suite{Features: features, open: harness}
		for _, c := range slices.Concat(s.copies(), s.seen(), s.crashes(), s.produced(), s.identities(), s.startup(), s.operators(), s.operations(), s.twoPhase()) {
			t.Run("Test"+c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t)
			})
		}
	})
}

type suite struct {
	Features
	open Harness
}

// testCase is one case; its name begins with the line of the failure table.
type testCase struct {
	name string
	run  func(t *testing.T)
}

// rig is an inbox on an environment, and what its observer and logger were told.
type rig struct {
	*Env
	*inbox.Inbox
	events events
	logs   *logs
}

const consumer = "charge"

var errHandler = errors.New("card declined")

// rig opens an environment and an inbox on it. Consumer defaults to a fixed name, so that no router is needed.
func (s *suite) rig(t testing.TB, o Options, config inbox.Config) *rig {
	t.Helper()
	return newRig(t, s.open(t, o), config)
}

func newRig(t testing.TB, env *Env, config inbox.Config) *rig {
	t.Helper()
	r := &rig{Env: env, logs: &logs{}}
	if config.Consumer == nil {
		config.Consumer = func(*message.Message) string { return consumer }
	}
	if config.Logger == nil {
		config.Logger = r.logs
	}
	config.Observer = r.events.add
	in, err := inbox.New(env.Store, config)
	require.NoError(t, err)
	r.Inbox = in
	return r
}

// handle passes a message through the middleware to a handler that may also be given as an effect to write.
func (r *rig) handle(msg *message.Message, handler message.HandlerFunc) error {
	_, err := r.Middleware(handler)(msg)
	return err
}

// writes is a handler that writes one effect.
func (r *rig) writes(name string) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		return nil, r.Write(msg.Context(), name)
	}
}

// events collects what an Observer is told.
type events struct {
	mu   sync.Mutex
	list []inbox.Event
}

func (e *events) add(_ context.Context, event inbox.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

// count tells how many deliveries had the outcome.
func (e *events) count(outcome inbox.Outcome) int {
	n := 0
	for _, event := range e.all() {
		if event.Outcome == outcome {
			n++
		}
	}
	return n
}

func (e *events) all() []inbox.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

// logs collects log lines; it is a watermill.LoggerAdapter.
type logs struct {
	mu    sync.Mutex
	lines []logLine
}

type logLine struct {
	level, text string
	err         error
	fields      watermill.LogFields
}

func (l *logs) add(level, text string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, logLine{level, text, err, fields})
}

// at gives the lines of a level.
func (l *logs) at(level string) []logLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []logLine
	for _, line := range l.lines {
		if line.level == level {
			found = append(found, line)
		}
	}
	return found
}

func (l *logs) Error(text string, err error, fields watermill.LogFields) {
	l.add("ERROR", text, err, fields)
}

func (l *logs) Info(text string, fields watermill.LogFields) { l.add("INFO", text, nil, fields) }

func (l *logs) Debug(text string, fields watermill.LogFields) { l.add("DEBUG", text, nil, fields) }

func (l *logs) Trace(text string, fields watermill.LogFields)    { l.add("TRACE", text, nil, fields) }
func (l *logs) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// newMessage makes a message with an id of its own.
func newMessage(payload string) *message.Message {
	return message.NewMessage(inbox.NewUUID(), message.Payload(payload))
}
