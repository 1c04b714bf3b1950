package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox"
)

// queueIntake are the cases about storing messages for later.
func (s *suite) queueIntake() []testCase {
	return []testCase{
		{"E8_CopiesAtTheIntake", s.intakeCopies},
		{"E8_CopiesInOneBatch", s.intakeBatch},
		{"E8_ManyCallersJoin", s.intakeJoined},
		{"A8_OtherContentAtTheIntake", s.intakeMismatch},
		{"G6_LateAtTheIntake", s.intakeLate},
		{"A12_IntakeInsideTheMiddleware", s.intakeNested},
		{"A12_TwoPhaseBesideTheMiddleware", s.intakePassedThrough},
		{"D5_BytesThroughTheQueue", s.d5},
	}
}

// intakeCopies stores a message, and copies of it while it waits and when it is handled.
func (s *suite) intakeCopies(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	msg := newMessage("pay 10")
	r.store(t, msg, msg)
	require.Equal(t, 1, r.queued(t))
	produced, err := r.Middleware(r.writes("inline"))(msg.Copy())
	require.NoError(t, err, "an inline copy of what is queued is acked")
	require.Empty(t, produced)
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeStored: 1, inbox.OutcomeQueued: 2})

	r.work(t, workerConfig{}, r.writes("pay"))
	r.finished(t, "pay", 1)
	r.store(t, msg)
	require.NoError(t, r.handle(msg.Copy(), r.writes("inline")))
	require.Equal(t, 0, r.queued(t))
	require.Equal(t, 0, r.Count(t, "inline"))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeStored: 1, inbox.OutcomeQueued: 2, inbox.OutcomeProcessed: 1, inbox.OutcomeDuplicate: 2})
	r.requireIdle(t)
}

// entry is one for Enqueue.
func entry(t *testing.T, msg *message.Message) inbox.Entry {
	t.Helper()
	var content inbox.Fingerprint
	copy(content[:], msg.Payload)
	return inbox.Entry{Delivery: inbox.Delivery{Key: inbox.Key{Consumer: consumer, ID: msg.UUID}, Fingerprint: content}, Message: msg}
}

// intakeBatch stores copies in one call: each has its own answer, and the others do not suffer from a wrong one.
func (s *suite) intakeBatch(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	right, wrong := reused()
	other := newMessage("pay 30")
	known := newMessage("pay 40")
	q := r.queueStore(t)
	require.NoError(t, q.Enqueue(context.Background(), []inbox.Entry{entry(t, known)})[0].Err)
	r.alter(t, "UPDATE "+r.Memory+" SET message_id = 'another'")

	answers := q.Enqueue(context.Background(), []inbox.Entry{
		entry(t, right), entry(t, right), entry(t, wrong), entry(t, known), entry(t, other),
	})
	require.Len(t, answers, 5)
	require.NoError(t, answers[0].Err)
	require.Equal(t, inbox.OutcomeStored, answers[0].Outcome)
	require.NoError(t, answers[1].Err)
	require.Equal(t, inbox.OutcomeQueued, answers[1].Outcome)
	require.ErrorIs(t, answers[2].Err, inbox.ErrMismatch)
	require.ErrorIs(t, answers[3].Err, inbox.ErrKeyCollision)
	require.NoError(t, answers[4].Err)
	require.Equal(t, inbox.OutcomeStored, answers[4].Outcome)
	var named *inbox.Error
	require.ErrorAs(t, answers[2].Err, &named)
	require.Equal(t, inbox.PhaseStore, named.Phase)
	require.Equal(t, wrong.UUID, named.Key.ID)
	require.Equal(t, 3, r.queued(t))
}

// intakeJoined lets many callers store at once, copies among them: every message is stored once, and told so once.
func (s *suite) intakeJoined(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	const messages, copies = 60, 3
	var wg sync.WaitGroup
	errs := make(chan error, messages*copies)
	for i := range messages {
		msg := message.NewMessage(fmt.Sprint("m", i), []byte("pay"))
		for range copies {
			wg.Go(func() { errs <- r.Intake(consumer)(msg.Copy()) })
		}
	}
	within(t, patience, "the intakes", wg.Wait)
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, messages, r.queued(t))
	require.Equal(t, messages, r.Rows(t))
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeStored: messages, inbox.OutcomeQueued: messages * (copies - 1)})
}

func (s *suite) intakeMismatch(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	right, wrong := reused()
	r.store(t, right)
	require.ErrorIs(t, r.Intake(consumer)(wrong.Copy()), inbox.ErrMismatch, "waiting")
	publisher := r.queueStore(t).NewPublisher(sqlinbox.PublisherConfig{})
	require.ErrorIs(t, publisher.Publish(consumer, wrong.Copy()), inbox.ErrMismatch)
	require.ErrorIs(t, r.handle(newMessage("outgoing"), func(msg *message.Message) ([]*message.Message, error) {
		out := wrong.Copy()
		out.SetContext(msg.Context())
		return nil, publisher.Publish(consumer, out)
	}), inbox.ErrMismatch, "inside a transaction")
	r.work(t, workerConfig{}, r.writes("pay"))
	r.finished(t, "pay", 1)
	require.ErrorIs(t, r.Intake(consumer)(wrong.Copy()), inbox.ErrMismatch, "handled")

	lenient := newRig(t, r.Env, inbox.Config{Mismatch: inbox.MismatchReport})
	require.NoError(t, lenient.Intake(consumer)(wrong.Copy()))
	lenient.told(t, map[inbox.Outcome]int{inbox.OutcomeMismatch: 1})
}

func (s *suite) intakeLate(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	kept, late := newMessage("pay 10"), newMessage("pay 20")
	r.store(t, kept)
	r.raiseHorizon(t, consumer, time.Now().Add(time.Minute))
	require.ErrorIs(t, r.Intake(consumer)(late.Copy()), inbox.ErrLate)
	require.NoError(t, r.Intake(consumer)(kept.Copy()), "what is remembered is no question")
	r.told(t, map[inbox.Outcome]int{inbox.OutcomeStored: 1, inbox.OutcomeLate: 1, inbox.OutcomeQueued: 1})
	require.Equal(t, 1, r.queued(t))
}

// intakeNested uses the intake by hand inside the middleware.
func (s *suite) intakeNested(t *testing.T) {
	r := s.rig(t, Options{PoolSize: 1}, inbox.Config{})
	err := r.handleWithin(t, newMessage("pay 10"), func(msg *message.Message) ([]*message.Message, error) {
		return nil, r.Intake(consumer)(msg)
	})
	require.ErrorIs(t, err, inbox.ErrNested)
	require.True(t, inbox.IsTransient(err))
	r.requireNothing(t)
	require.Equal(t, 0, r.queued(t))
}

// intakePassedThrough registers both handlers in a router with the middleware around all.
func (s *suite) intakePassedThrough(t *testing.T) {
	r := newRouterRig(t, s.open(t, Options{}))
	broker := newBroker(t)
	queue, err := r.queueStore(t).NewSubscriber(sqlinbox.SubscriberConfig{Logger: r.logs})
	require.NoError(t, err)
	var topic string
	r.route(t, func(router *message.Router) {
		router.AddMiddleware(r.Middleware)
		_, err := inbox.TwoPhase(router, r.Inbox, inbox.TwoPhaseConfig{
			Name: consumer, Topic: ordersTopic, Subscriber: twice(t, broker), Queue: queue,
			Handler: func(msg *message.Message) ([]*message.Message, error) {
				topic = msg.Metadata.Get(inbox.TopicMetadataKey)
				return nil, r.Write(msg.Context(), "pay")
			},
		})
		require.NoError(t, err)
	})
	require.NoError(t, publish(broker, newMessage("pay 10")).end(t))
	r.finished(t, "pay", 1)
	require.Equal(t, ordersTopic, topic)
	require.Eventually(t, func() bool { return r.events.count(inbox.OutcomeProcessed) == 1 }, patience, time.Millisecond)
}

// d5 passes all bytes through the queue, in the UUID, the metadata and the payload.
func (s *suite) d5(t *testing.T) {
	r := s.rig(t, Options{}, inbox.Config{})
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	payloads := []string{string(all), `{"name":"a\u0000b","emoji":"\ud83d\ude00"}`, "", "'; DROP TABLE effects; --"}
	want := map[string]*message.Message{}
	for i, payload := range payloads {
		msg := message.NewMessage(fmt.Sprint(i, string(all)), message.Payload(payload))
		msg.Metadata.Set(string(all), string(all))
		msg.Metadata.Set("plain", `a\u0000b`)
		want[msg.UUID] = msg
		r.store(t, msg)
	}
	got := make(chan *message.Message, len(payloads))
	r.work(t, workerConfig{}, func(msg *message.Message) ([]*message.Message, error) {
		got <- msg.Copy()
		return nil, nil
	})
	for range payloads {
		var msg *message.Message
		within(t, patience, "a message", func() { msg = <-got })
		require.NotNil(t, want[msg.UUID], "%q", msg.UUID)
		require.Equal(t, []byte(want[msg.UUID].Payload), append([]byte{}, msg.Payload...))
		require.Equal(t, want[msg.UUID].Metadata, msg.Metadata)
		delete(want, msg.UUID)
	}
	r.drained(t)
}
