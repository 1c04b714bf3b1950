package queue

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	const shortest, longest = time.Second, 5 * time.Minute
	for attempt, want := range map[int]time.Duration{
		-1: shortest, 0: shortest, 1: shortest, 2: 2 * shortest, 5: 16 * shortest, 9: 256 * shortest, 10: longest, 31: longest,
		32: longest, 64: longest, 1 << 40: longest,
	} {
		for range 100 {
			got := backoff(shortest, longest, attempt)
			require.GreaterOrEqual(t, got, want/2, attempt)
			require.LessOrEqual(t, got, want, attempt)
		}
	}
	require.Positive(t, backoff(time.Hour*1000000, time.Hour*2000000, 30), "no overflow")
}

func TestReason(t *testing.T) {
	t.Parallel()
	require.Equal(t, `a\x00\xff`, reason(errors.New("a\x00\xff")))
	long := reason(errors.New(strings.Repeat("x", 10*mostReason)))
	require.Len(t, long, mostReason+3)
	require.True(t, strings.HasSuffix(long, "x..."))
}

func TestWakers(t *testing.T) {
	t.Parallel()
	var w wakers
	one, two := engine.ConsumerID("one"), engine.ConsumerID("two")
	w.wake(one) // nobody sleeps
	a, b, c := w.add(one), w.add(one), w.add(two)
	for range 3 { // several are one
		w.wake(one)
	}
	require.Len(t, a, 1)
	require.Len(t, b, 1)
	require.Empty(t, c)
	w.remove(one, a)
	<-a
	w.wake(one)
	require.Empty(t, a)
	w.remove(one, b)
	w.remove(two, c)
	require.Empty(t, w.sleeping)
}

// database is a fake of both backends: a memory of keys, with keys that it refuses.
type database struct {
	Backend
	mu      sync.Mutex
	refuses map[string]bool // by message id
	stored  map[inbox.StorageKey]*engine.Claim
	batches [][]string
	gate    chan struct{} // holds the first batch up
	entered chan struct{}
	silent  bool // no answer until the context ends
}

var errRow = errors.New("value too long")

func (d *database) Claim(context.Context, *engine.Claim, time.Duration) (engine.Answer, error) {
	return engine.Answer{}, nil
}

func (d *database) Scheme(_ context.Context, s engine.Scheme, _ time.Duration) (string, error) {
	return s.Scheme, nil
}

func (d *database) Fault(err error) engine.Fault {
	if errors.Is(err, context.DeadlineExceeded) {
		return engine.FaultNone
	}
	return engine.FaultOther
}

func (d *database) Look(_ context.Context, c *engine.Claim) (*engine.Row, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.stored[c.Key]
	if known == nil {
		return &engine.Row{}, nil
	}
	return &engine.Row{
		Found: true, Fingerprint: known.Fingerprint, Consumer: known.Consumer, Source: known.Source, MessageID: known.MessageID,
	}, nil
}

func (d *database) Store(ctx context.Context, items []*Item) ([]bool, error) {
	if d.silent {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Hour):
			return nil, errRow
		}
	}
	d.mu.Lock()
	first := len(d.batches) == 0
	var ids []string
	for _, item := range items {
		ids = append(ids, item.Claim.MessageID)
	}
	d.batches = append(d.batches, ids)
	d.mu.Unlock()
	if first && d.gate != nil {
		close(d.entered)
		<-d.gate
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	stored := make([]bool, len(items))
	for _, item := range items {
		if d.refuses[item.Claim.MessageID] {
			return nil, errRow
		}
	}
	for i, item := range items {
		if d.stored[item.Claim.Key] == nil {
			d.stored[item.Claim.Key], stored[i] = item.Claim, true
		}
	}
	return stored, nil
}

func newDatabase() (*database, *Queue) {
	d := &database{refuses: map[string]bool{}, stored: map[inbox.StorageKey]*engine.Claim{}}
	return d, New(engine.New(d, engine.Settings{}), d, nil)
}

func entryOf(id, payload string) inbox.Entry {
	var content inbox.Fingerprint
	copy(content[:], payload)
	return inbox.Entry{
		Delivery: inbox.Delivery{Key: inbox.Key{Consumer: "charge", ID: id}, Fingerprint: content},
		Message:  message.NewMessage(id, message.Payload(payload)),
	}
}

// While one call is on its way the others collect, and go together; each has its own answer.
func TestIntakeJoins(t *testing.T) {
	t.Parallel()
	d, q := newDatabase()
	d.gate, d.entered = make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	enqueue := func(id string) {
		wg.Go(func() {
			answers := q.Enqueue(t.Context(), []inbox.Entry{entryOf(id, "pay")})
			if len(answers) != 1 || answers[0].Err != nil {
				t.Errorf("%s: %v", id, answers)
			}
		})
	}
	enqueue("first")
	<-d.entered
	for i := range mostTogether + 50 {
		enqueue(strings.Repeat("x", i+1))
	}
	waiting := func() int {
		q.intake.mu.Lock()
		defer q.intake.mu.Unlock()
		return len(q.intake.waiting)
	}
	require.Eventually(t, func() bool { return waiting() == mostTogether+50 }, 10*time.Second, time.Millisecond)
	close(d.gate)
	wg.Wait()
	require.Len(t, d.stored, mostTogether+51)
	require.Len(t, d.batches, 3)
	require.Len(t, d.batches[1], mostTogether)
	require.Len(t, d.batches[2], 50)
	require.False(t, q.intake.leading)
}

// A server that does not answer keeps nobody waiting for ever, whatever the contexts of the callers.
func TestIntakeOfASilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, q := newDatabase()
		d.silent = true
		began := time.Now()
		var wg sync.WaitGroup
		for _, id := range []string{"1", "2", "3"} {
			wg.Go(func() {
				answers := q.Enqueue(t.Context(), []inbox.Entry{entryOf(id, "pay")})
				require.ErrorIs(t, answers[0].Err, context.DeadlineExceeded)
				require.True(t, inbox.IsTransient(answers[0].Err))
			})
		}
		wg.Wait()
		require.Equal(t, 2*engine.DefaultCommitTimeout, time.Since(began), "the second and the third went together")
	})
}

// An error that one row may have caused is brought home to it.
func TestIntakeSplits(t *testing.T) {
	t.Parallel()
	d, q := newDatabase()
	d.refuses["5"] = true
	var entries []inbox.Entry
	for _, id := range strings.Split("0123456789", "") {
		entries = append(entries, entryOf(id, "pay"))
	}
	entries = append(entries, entryOf("3", "pay"), entryOf("3", "other"), entryOf("5", "pay"))
	answers := q.Enqueue(t.Context(), entries)
	for i, a := range answers[:10] {
		if i == 5 {
			require.ErrorIs(t, a.Err, errRow)
			require.True(t, inbox.IsTransient(a.Err))
			continue
		}
		require.NoError(t, a.Err)
		require.Equal(t, inbox.OutcomeStored, a.Outcome)
	}
	require.Equal(t, inbox.OutcomeQueued, answers[10].Outcome)
	require.ErrorIs(t, answers[11].Err, inbox.ErrMismatch)
	require.Error(t, answers[12].Err, "a copy of what was not stored is not stored either")
	require.LessOrEqual(t, len(d.batches), 9)
}
