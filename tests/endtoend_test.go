package tests_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
	"github.com/watermill-contrib/watermill-inbox/tests"
)

// endToEnd is a service whose handler produces messages, while everything goes wrong: every order arrives twice at the
// same time, the publisher fails before, between and behind its messages, and the process is killed again and again.
// Downstream is a second inbox. It is what a parent tells its children, as JSON.
type endToEnd struct {
	Column, Space, DSN string
	Acks               string // a file: the orders that the broker need not deliver again
	Orders             int
	Seed               uint64
}

const (
	endToEndEnv  = "INBOX_TEST_ENDTOEND"
	endToEndSeed = "INBOX_TEST_SEED" // makes a run decide as an earlier one did
	inFlight     = 8                 // orders at a time, each of them twice
)

func TestEndToEnd(t *testing.T) {
	t.Parallel()
	for _, c := range columns() {
		t.Run(c.features.Name, func(t *testing.T) {
			t.Parallel()
			env := c.harness(t, tests.Options{})
			run := endToEnd{
				Column: c.features.Name, Space: env.Space, DSN: env.DSN,
				Acks:   filepath.Join(t.TempDir(), "acks"),
				Orders: tests.Scale(1000, 120), Seed: seed(t),
			}
			t.Logf("%s=%d", endToEndSeed, run.Seed)
			kills := run.killUntilAcked(t, tests.Scale(30, 5))
			require.Positive(t, kills, "no process was killed")
			t.Logf("%d orders, %d kills", run.Orders, kills)
			require.Empty(t, run.wrong(effects(t, env)), "effects that are not there once, and how often they are")
		})
	}
}

func seed(t *testing.T) uint64 {
	text := os.Getenv(endToEndSeed)
	if text == "" {
		return rand.Uint64()
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err)
	return n
}

// killUntilAcked kills one child after the other at random points, and lets the last one come to its end.
func (run endToEnd) killUntilAcked(t *testing.T, most int) (kills int) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	points := [...]string{"handled", "publishing", "published"}
	random := rand.New(rand.NewPCG(run.Seed, 0))
	for ; kills < most; kills++ {
		point := fmt.Sprintf("%s#%d", points[random.IntN(len(points))], 1+random.IntN(12))
		child := run.start(t, point)
		if child.WaitPoint(ctx) != nil {
			require.NoError(t, child.Wait(ctx), "a child that was not killed")
			return kills
		}
		require.NoError(t, child.Kill())
		run.Seed++
	}
	require.NoError(t, run.start(t, "").Wait(ctx))
	return kills
}

func (run endToEnd) start(t *testing.T, point string) *inboxtest.Child {
	encoded, err := json.Marshal(run)
	require.NoError(t, err)
	child, err := inboxtest.StartChild(t.Context(), "TestEndToEndChild", inboxtest.ChildConfig{
		Point: point, Env: []string{endToEndEnv + "=" + string(encoded)}, Timeout: 2 * time.Minute,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = child.Kill() })
	return child
}

// wrong gives the effects that are not there exactly once: each order has one, and downstream each message that its
// handler returned.
func (run endToEnd) wrong(counts map[string]int) map[string]int {
	wrong := maps.Clone(counts)
	expect := func(name string) {
		if wrong[name] = counts[name]; counts[name] == 1 {
			delete(wrong, name)
		}
	}
	for order := range run.Orders {
		expect(orderID(order))
		for _, out := range produce(orderID(order)) {
			expect("down-" + string(out.Payload))
		}
	}
	return wrong
}

func effects(t *testing.T, env *tests.Env) map[string]int {
	rows, err := env.DB.QueryContext(t.Context(), "SELECT name, count(*) FROM "+env.Effects+" GROUP BY name")
	require.NoError(t, err)
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		require.NoError(t, rows.Scan(&name, &n))
		counts[name] = n
	}
	require.NoError(t, rows.Err())
	return counts
}

func orderID(order int) string { return fmt.Sprintf("order-%03d", order) }

// produce gives one to three messages for an order. They have no UUID: the inbox gives them one.
func produce(order string) []*message.Message {
	n := 1 + int(order[len(order)-1])%3
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = message.NewMessage("", []byte(order+"/"+strconv.Itoa(i)))
	}
	return out
}

// TestEndToEndChild is the main function of the processes that TestEndToEnd starts; otherwise it does nothing.
func TestEndToEndChild(t *testing.T) {
	text := os.Getenv(endToEndEnv)
	if !inboxtest.IsChild() || text == "" {
		return
	}
	var run endToEnd
	require.NoError(t, json.Unmarshal([]byte(text), &run))
	for _, c := range columns() {
		if c.features.Name == run.Column {
			run.serve(t, c.harness(t, tests.Options{Space: run.Space, DSN: run.DSN}))
		}
	}
}

// serve handles the orders that are not acked yet, until all are.
func (run endToEnd) serve(t *testing.T, env *tests.Env) {
	acks := openAcks(t, run.Acks)
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	witnessed, err := message.MessageTransformSubscriberDecorator(acks.watch)(broker)
	require.NoError(t, err)
	sub, err := inboxtest.NewDuplicateSubscriber(witnessed, inboxtest.DuplicateSubscriberConfig{Concurrent: true})
	require.NoError(t, err)
	in, err := inbox.New(env.Store, inbox.Config{})
	require.NoError(t, err)
	downstream, err := inbox.New(env.Store, inbox.Config{Consumer: func(*message.Message) string { return "downstream" }})
	require.NoError(t, err)
	publisher := &flakyBroker{
		random: rand.New(rand.NewPCG(run.Seed, 1)),
		deliver: downstream.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			return nil, env.Write(msg.Context(), "down-"+string(msg.Payload))
		}),
	}

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(in.Middleware)
	router.AddHandler("charge", "orders", sub, "charged", publisher, func(msg *message.Message) ([]*message.Message, error) {
		err := env.Write(msg.Context(), msg.UUID)
		inboxtest.Point("handled")
		return produce(msg.UUID), err
	})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(t.Context()) }()
	<-router.Running()
	for order := range run.Orders {
		if id := orderID(order); !acks.has(id) {
			acks.slots <- struct{}{}
			require.NoError(t, broker.Publish("orders", message.NewMessage(id, []byte(id))))
		}
	}
	for range inFlight {
		acks.slots <- struct{}{} // all are free: nothing is in flight
	}
	require.NoError(t, router.Close())
	require.NoError(t, <-stopped)
}

// acks are what the broker remembers of acks beyond the end of a process.
type acks struct {
	slots chan struct{} // one for each order in flight

	mu    sync.Mutex
	file  *os.File
	acked map[string]bool
}

func openAcks(t *testing.T, path string) *acks {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	a := &acks{slots: make(chan struct{}, inFlight), file: file, acked: map[string]bool{}}
	for id := range strings.FieldsSeq(string(text)) {
		a.acked[id] = true
	}
	return a
}

func (a *acks) has(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acked[id]
}

// watch writes an ack down, a moment after it was given: a kill in between is a redelivery of something acked.
func (a *acks) watch(msg *message.Message) {
	go func() {
		select {
		case <-msg.Nacked(): // it comes again
			return
		case <-msg.Acked():
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if _, err := a.file.WriteString(msg.UUID + "\n"); err != nil {
			panic(err) // the child fails
		}
		<-a.slots
	}()
}

// flakyBroker is a publisher that delivers straight to its consumer, so that what it published outlives the process.
type flakyBroker struct {
	deliver message.HandlerFunc

	mu     sync.Mutex
	random *rand.Rand
}

var errBroker = errors.New("the broker is away")

// Publish delivers each message once or twice. One time in three it fails: before the first, between two, or when all
// of them are delivered and the publisher does not get to know.
func (b *flakyBroker) Publish(_ string, messages ...*message.Message) error {
	failAt := -1
	if b.draw(3) == 0 {
		failAt = b.draw(len(messages) + 1)
	}
	for i, msg := range messages {
		if i == failAt {
			return errBroker
		}
		inboxtest.Point("publishing")
		for range 1 + b.draw(2) {
			if _, err := b.deliver(message.NewMessage(msg.UUID, msg.Payload)); err != nil {
				return err
			}
		}
	}
	if failAt == len(messages) {
		return errBroker
	}
	inboxtest.Point("published")
	return nil
}

func (b *flakyBroker) draw(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.random.IntN(n)
}

func (b *flakyBroker) Close() error { return nil }
