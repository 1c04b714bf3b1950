package inbox_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// fakeQueueStore is a fakeStore that keeps messages for later.
type fakeQueueStore struct {
	*fakeStore
	answers func(entry inbox.Entry) inbox.Stored // instead of OutcomeStored

	queueMu sync.Mutex
	batches [][]inbox.Entry
}

func newFakeQueueStore() *fakeQueueStore { return &fakeQueueStore{fakeStore: newFakeStore()} }

func (s *fakeQueueStore) Enqueue(_ context.Context, entries []inbox.Entry) []inbox.Stored {
	s.queueMu.Lock()
	defer s.queueMu.Unlock()
	s.batches = append(s.batches, slices.Clone(entries))
	answers := make([]inbox.Stored, len(entries))
	for i, entry := range entries {
		answers[i] = inbox.Stored{Outcome: inbox.OutcomeStored}
		if s.answers != nil {
			answers[i] = s.answers(entry)
		}
	}
	return answers
}

// entries are all that were stored.
func (s *fakeQueueStore) entries() []inbox.Entry {
	s.queueMu.Lock()
	defer s.queueMu.Unlock()
	return slices.Concat(s.batches...)
}

// fakeLease is a Lease whose steps are kept in memory; its Process is that of a fakeStore.
type fakeLease struct {
	*fakeStore
	of    inbox.Store
	d     inbox.Delivery
	steps map[string][]byte
	msg   *message.Message
}

func newFakeLease(of inbox.Store, d inbox.Delivery) *fakeLease {
	return &fakeLease{fakeStore: newFakeStore(), of: of, d: d, steps: map[string][]byte{}}
}

// Message is the one that leasedMessage made.
func (l *fakeLease) Message() *message.Message { return l.msg }

func (l *fakeLease) Of(store inbox.Store) bool { return store == l.of }

func (l *fakeLease) Delivery() inbox.Delivery { return l.d }

func (l *fakeLease) Step(ctx context.Context, name string, fn func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	if result, found := l.steps[name]; found {
		return result, nil
	}
	result, err := fn(ctx)
	if err == nil {
		l.steps[name] = result
	}
	return result, err
}

// leasedMessage gives a message from the queue.
func leasedMessage(ctx context.Context, l inbox.Lease, uuid string) *message.Message {
	msg := message.NewMessageWithContext(inbox.WithLease(ctx, l), uuid, nil)
	if fake, ok := l.(*fakeLease); ok {
		fake.msg = msg
	}
	return msg
}

// ackedQueueStore counts what it is told was acked.
type ackedQueueStore struct {
	*fakeStore
	acks atomic.Int32
}

func (s *ackedQueueStore) Acked(inbox.Delivery) { s.acks.Add(1) }
