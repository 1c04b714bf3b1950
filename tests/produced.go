package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/inboxtest"
)

// produced are the cases about messages that the handler produces (C).
func (s *suite) produced() []testCase {
	cases := []testCase{
		{"C1_PublishFailsAfterTheCommit", s.c1},
		{"C1_ReplayAlwaysKeepsTheRecord", s.c1Always},
		{"C1_AnEarlyAckDeletesNothing", s.c1EarlyAck},
		{"C1_WithoutAnAckNothingIsDeleted", s.c1NoAck},
		{"C1_AnotherHandlerWithoutAPublishTopic", s.c1NoTopic},
		{"C1_BytesOfRecordedMessagesAreKept", s.c1Bytes},
		{"C2_KilledBetweenTwoPublishes", s.c2},
		{"C4_CorrelationAndTraceReachTheProduced", s.c4},
		{"C5_NothingIsReplayedAfterTheAck", s.c5},
	}
	if !s.NoOutbox {
		cases = append(cases,
			testCase{"C3_OutboxCommitsWithTheHandler", s.c3},
			testCase{"C3_TxPublisherFindsTheTransaction", s.c3TxPublisher},
		)
	}
	return cases
}

const topicOut = "charged"

// producing is a handler that writes one effect and returns n messages.
func (r *rig) producing(name string, n int) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out := make([]*message.Message, n)
		for i := range out {
			out[i] = newMessage(name + "-" + strconv.Itoa(i))
		}
		return out, r.Write(msg.Context(), name)
	}
}

// recorded counts the records that wait for their ack.
func (r *rig) recorded(t testing.TB) int {
	t.Helper()
	return r.scalar(t, "SELECT count(*) FROM "+r.Produced)
}

func uuids(messages []*message.Message) []string {
	ids := make([]string, len(messages))
	for i, msg := range messages {
		ids[i] = msg.UUID
	}
	return ids
}

// c1 runs a real router whose publisher fails once.
func (s *suite) c1(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{Consumer: func(*message.Message) string { return consumer }})
	in := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	out := &flakyPublisher{failures: 2, published: make(chan struct{}, 16)}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	calls := 0
	handler := r.producing("pay", 3)
	router.AddHandler("charge", "orders", in, topicOut, out, func(msg *message.Message) ([]*message.Message, error) {
		calls++
		return handler(msg)
	})
	router.AddMiddleware(r.Middleware)
	go func() { _ = router.Run(context.Background()) }()
	t.Cleanup(func() { _ = router.Close() })
	<-router.Running()

	require.NoError(t, in.Publish("orders", newMessage("pay 10")))
	select {
	case <-out.published:
	case <-time.After(20 * time.Second):
		t.Fatal("the produced messages were never published")
	}
	require.Equal(t, 1, calls, "the handler runs once")
	require.Equal(t, 1, r.Count(t, "pay"))
	attempts := out.attempts()
	require.Len(t, attempts, 3, "two failures and a success")
	require.Len(t, attempts[0], 3)
	require.Equal(t, attempts[0], attempts[1], "the same UUIDs in the same order")
	require.Equal(t, attempts[0], attempts[2], "the same UUIDs in the same order")
	require.Eventually(t, func() bool { return r.recorded(t) == 0 }, 20*time.Second, 20*time.Millisecond, "the ack deletes the record")
}

func (s *suite) c1Always(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{Replay: inbox.ReplayAlways})
	first := newMessage("pay 10")
	produced, err := r.Middleware(r.producing("pay", 2))(first)
	require.NoError(t, err)
	first.Ack()
	for range 3 {
		copied := first.Copy()
		again, err := r.Middleware(r.producing("pay", 2))(copied)
		require.NoError(t, err)
		require.Equal(t, uuids(produced), uuids(again))
		copied.Ack()
	}
	r.ackAnother(t, 1)
	require.Equal(t, 1, r.Count(t, "pay"))
}

func (s *suite) c1EarlyAck(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	early := newMessage("pay 10")
	handler := r.producing("pay", 1)
	produced, err := r.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		msg.Ack()
		return handler(msg)
	})(early)
	require.NoError(t, err)
	r.ackAnother(t, 1)
	again, err := r.Middleware(handler)(early.Copy())
	require.NoError(t, err)
	require.Equal(t, uuids(produced), uuids(again), "an ack before the publish proves nothing")
}

// c1NoAck ends deliveries in each way that is not an ack.
func (s *suite) c1NoAck(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	open, nacked, cancelled := newMessage("open"), newMessage("nacked"), newMessage("cancelled")
	ctx, cancel := context.WithCancel(context.Background())
	cancelled.SetContext(ctx)
	messages := []*message.Message{open, nacked, cancelled}
	want := make([][]string, len(messages))
	for i, msg := range messages {
		produced, err := r.Middleware(r.producing("pay", 1))(msg)
		require.NoError(t, err)
		want[i] = uuids(produced)
	}
	nacked.Nack()
	cancel()
	r.ackAnother(t, len(messages))
	for i, msg := range messages {
		again, err := r.Middleware(r.producing("pay", 1))(msg.Copy())
		require.NoError(t, err)
		require.Equal(t, want[i], uuids(again), "%s", msg.Payload)
	}
}

// ackAnother handles and acks a message on the same store and waits until its record is deleted and n are left: had
// the records of earlier messages been up for deletion, they would have gone with it or before it.
func (r *rig) ackAnother(t *testing.T, n int) {
	t.Helper()
	another := newRig(t, r.Env, inbox.Config{Consumer: func(*message.Message) string { return "another" }})
	msg := newMessage("pay 20")
	_, err := another.Middleware(r.producing("another", 1))(msg)
	require.NoError(t, err)
	require.Equal(t, n+1, r.recorded(t))
	msg.Ack()
	require.Eventually(t, func() bool { return r.recorded(t) <= n }, 20*time.Second, 20*time.Millisecond)
	require.Equal(t, n, r.recorded(t), "records that nobody has proved to be published")
}

func (s *suite) c1NoTopic(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay 10")
	produced, err := r.Middleware(r.producing("pay", 1))(inHandler(msg.Copy(), "charge-kafka", topicOut))
	require.NoError(t, err)
	require.Len(t, produced, 1)

	_, err = r.Middleware(r.producing("pay", 1))(inHandler(msg.Copy(), "charge-rabbit", ""))
	require.ErrorIs(t, err, inbox.ErrNoPublishTopic)
	require.ErrorContains(t, err, "charge-kafka")
	require.ErrorContains(t, err, "charge-rabbit")
	require.True(t, inbox.IsTransient(err))
	require.Equal(t, 1, r.Count(t, "pay"))
}

func (s *suite) c1Bytes(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	odd := message.NewMessage("", all)
	odd.Metadata["k\x00\xff"] = string(all)
	empty := message.NewMessage("", nil)
	escaped := message.NewMessage("", []byte(`{"nul":"\u0000"}`))
	handler := func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{odd, empty, escaped}, r.Write(msg.Context(), "pay")
	}
	msg := newMessage("pay 10")
	produced, err := r.Middleware(handler)(msg.Copy())
	require.NoError(t, err)
	for _, out := range produced {
		require.NotEmpty(t, out.UUID, "a message without a UUID gets one")
	}
	again, err := r.Middleware(handler)(msg.Copy())
	require.NoError(t, err)
	require.Len(t, again, 3)
	for i := range again {
		require.Equal(t, produced[i].UUID, again[i].UUID)
		require.Equal(t, []byte(produced[i].Payload), append([]byte(nil), again[i].Payload...))
		require.Equal(t, produced[i].Metadata, again[i].Metadata)
	}
}

// c2 kills the process that publishes between the second and the third of five messages. Publishing is a delivery to a
// downstream consumer with its own memory, in the same database.
func (s *suite) c2(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay 10")
	child := s.startChild(t, r.Env, task{Name: "publish", DSN: r.DSN, Args: map[string]string{"id": msg.UUID, "payload": string(msg.Payload)}}, "publish#3")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, child.WaitPoint(ctx))
	require.NoError(t, child.Kill())
	require.Equal(t, 1, r.Count(t, "pay"), "committed before it published")
	require.Equal(t, 2, r.scalar(t, "SELECT count(*) FROM "+r.Effects+" WHERE name LIKE 'down-%'"), "killed between two publishes")

	again := message.NewMessage(msg.UUID, msg.Payload)
	produced, err := r.Middleware(r.producing("pay", 5))(again)
	require.NoError(t, err)
	require.Len(t, produced, 5)
	down := downstream(t, r.Env)
	for _, out := range produced {
		require.NoError(t, down(out))
	}
	require.Equal(t, 1, r.Count(t, "pay"))
	for i := range 5 {
		require.Equal(t, 1, r.Count(t, fmt.Sprintf("down-pay-%d", i)))
	}
}

func (s *suite) producedTasks() map[string]taskFunc {
	return map[string]taskFunc{"publish": func(t *testing.T, this task) {
		env := s.open(t, Options{Space: this.Space, DSN: this.DSN})
		r := newRig(t, env, inbox.Config{})
		produced, err := r.Middleware(r.producing("pay", 5))(message.NewMessage(this.Args["id"], []byte(this.Args["payload"])))
		require.NoError(t, err)
		down := downstream(t, env)
		for _, out := range produced {
			inboxtest.Point("publish")
			require.NoError(t, down(out))
		}
	}}
}

// downstream gives the consumer of the produced messages: it applies each as an effect down-<payload>.
func downstream(t testing.TB, env *Env) func(*message.Message) error {
	t.Helper()
	r := newRig(t, env, inbox.Config{Consumer: func(*message.Message) string { return "downstream" }})
	return func(msg *message.Message) error {
		return r.handle(msg.Copy(), func(msg *message.Message) ([]*message.Message, error) {
			return nil, r.Write(msg.Context(), "down-"+string(msg.Payload))
		})
	}
}

func (s *suite) c4(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay 10")
	fields := map[string]string{"correlation_id": "c-1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b", "baggage": "k=v"}
	for field, value := range fields {
		msg.Metadata.Set(field, value)
	}
	handler := func(msg *message.Message) ([]*message.Message, error) {
		own := newMessage("own")
		own.Metadata.Set("correlation_id", "its own")
		return []*message.Message{newMessage("plain"), own}, r.Write(msg.Context(), "pay")
	}
	for range 2 { // returned by the handler, then from the record
		produced, err := r.Middleware(handler)(msg.Copy())
		require.NoError(t, err)
		require.Len(t, produced, 2)
		for field, value := range fields {
			require.Equal(t, value, produced[0].Metadata.Get(field))
		}
		require.Equal(t, "its own", produced[1].Metadata.Get("correlation_id"))
	}
}

func (s *suite) c5(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	n := Scale(1000, 100)
	history := make([]*message.Message, n)
	for i := range history {
		history[i] = newMessage("pay")
		msg := history[i].Copy()
		produced, err := r.Middleware(r.producing("pay", 2))(msg)
		require.NoError(t, err)
		require.Len(t, produced, 2)
		msg.Ack()
	}
	require.Eventually(t, func() bool { return r.recorded(t) == 0 }, 30*time.Second, 20*time.Millisecond, "acked records go")
	for _, msg := range history {
		produced, err := r.Middleware(r.producing("pay", 2))(msg.Copy())
		require.NoError(t, err)
		require.Empty(t, produced, "a replay of the history has no output")
	}
	require.Equal(t, n, r.Count(t, "pay"))
	require.Equal(t, n, r.events.count(inbox.OutcomeDuplicate))
}

// flakyPublisher fails a number of times and remembers the UUIDs of every attempt.
type flakyPublisher struct {
	published chan struct{}

	mu       sync.Mutex
	failures int
	tried    [][]string
}

func (p *flakyPublisher) Publish(_ string, messages ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tried = append(p.tried, uuids(messages))
	if p.failures > 0 {
		p.failures--
		return errors.New("the broker is away")
	}
	p.published <- struct{}{}
	return nil
}

func (p *flakyPublisher) Close() error { return nil }

func (p *flakyPublisher) attempts() [][]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tried)
}

// inHandler gives msg the context that a router gives to a handler's messages: its name and, unless it is empty, its
// publish topic. Nothing but a router can make one.
func inHandler(msg *message.Message, handler, publishTopic string) *message.Message {
	in := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err) // the configuration is empty
	}
	taken := make(chan context.Context, 1)
	if publishTopic == "" {
		router.AddConsumerHandler(handler, "orders", in, func(msg *message.Message) error {
			taken <- context.WithoutCancel(msg.Context())
			return nil
		})
	} else {
		router.AddHandler(handler, "orders", in, publishTopic, in, func(msg *message.Message) ([]*message.Message, error) {
			taken <- context.WithoutCancel(msg.Context())
			return nil, nil
		})
	}
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()
	if err := in.Publish("orders", newMessage("")); err != nil {
		panic(err)
	}
	msg.SetContext(<-taken)
	_ = router.Close()
	return msg
}
