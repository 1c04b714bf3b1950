package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
	"github.com/watermill-contrib/watermill-inbox/sqlinbox/internal/engine"
)

// Settings are what the configuration of a subscriber says, resolved.
type Settings struct {
	Concurrency  int
	LeaseTime    time.Duration
	PollMin      time.Duration
	PollMax      time.Duration
	MaxAttempts  int
	MaxStarts    int // in a row, that had no end
	BackoffMin   time.Duration
	BackoffMax   time.Duration
	CloseTimeout time.Duration
	OnDead       func(ctx context.Context, dead Dead) error
	Logger       watermill.LoggerAdapter
}

// Subscriber is a message.Subscriber over a queue; its topics are consumers.
type Subscriber struct {
	queue    *Queue
	settings Settings

	closing chan struct{} // closed by Close
	once    sync.Once
	wg      sync.WaitGroup
}

// errSubscriberClosed is the answer of a subscriber that is closed.
var errSubscriberClosed = errors.New("inbox: the subscriber is closed")

// Subscribe gives the messages of a consumer, the whole name. The channel closes when ctx ends or Close is called.
func (s *Subscriber) Subscribe(ctx context.Context, consumer string) (<-chan *message.Message, error) {
	select {
	case <-s.closing:
		return nil, errSubscriberClosed
	default:
	}
	if consumer == "" {
		return nil, inbox.ErrNoConsumer
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		Subscriber: s,
		consumer:   engine.ConsumerID(consumer),
		name:       consumer,
		out:        make(chan *message.Message),
		ctx:        ctx,
		slots:      make(chan struct{}, s.settings.Concurrency),
		held:       map[*engine.Lease]context.CancelCauseFunc{},
	}
	s.wg.Go(func() {
		defer cancel()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
	})
	s.wg.Go(func() {
		defer cancel()
		w.run(ctx)
	})
	return w.out, nil
}

// Close stops leasing, gives back what no handler has taken, and waits for the others, at most for CloseTimeout.
func (s *Subscriber) Close() error {
	s.once.Do(func() { close(s.closing) })
	s.wg.Wait()
	return nil
}

// worker is one subscription.
type worker struct {
	*Subscriber
	consumer inbox.StorageKey
	name     string
	out      chan *message.Message
	ctx      context.Context //nolint:containedctx // of the subscription
	slots    chan struct{}   // one token for each message at work
	work     sync.WaitGroup

	wary  bool      // the last lease met a suspect: take one row at a time
	swept time.Time // when blocked lanes were looked for last

	mu   sync.Mutex
	held map[*engine.Lease]context.CancelCauseFunc
}

// run leases until ctx ends. Database work goes on without ctx: what was leased must be given back.
func (w *worker) run(ctx context.Context) {
	wake := w.queue.wakers.add(w.consumer)
	defer w.queue.wakers.remove(w.consumer, wake)
	stopRenewing := make(chan struct{})
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		w.renew(stopRenewing)
	}()
	poll := w.settings.PollMin
	for w.waitSlot(ctx) {
		w.sweep(ctx)
		free := cap(w.slots) - len(w.slots)
		if w.wary {
			free = 1
		}
		rows, token, err := w.lease(free)
		if err != nil {
			w.settings.Logger.Error("Messages cannot be leased; trying again", err, watermill.LogFields{"consumer": w.name})
		}
		w.start(ctx, rows, token)
		if len(rows) == free && free > 0 {
			poll = w.settings.PollMin
			continue
		}
		if len(rows) > 0 {
			poll = w.settings.PollMin
		}
		w.sleep(ctx, wake, poll)
		poll = min(2*poll, w.settings.PollMax)
	}
	w.finish()
	close(stopRenewing)
	<-renewed
	close(w.out)
}

// waitSlot waits until a message may be started; false: the subscription ends.
func (w *worker) waitSlot(ctx context.Context) bool {
	select {
	case w.slots <- struct{}{}:
		<-w.slots
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// lease takes rows for the free slots. Whatever becomes of the call, ctx does not end it: a lease that nobody knows of
// would delay its message.
func (w *worker) lease(limit int) ([]*engine.QueueRow, engine.Token, error) {
	token := engine.NewToken()
	ctx, cancel := context.WithTimeout(context.Background(), w.settings.LeaseTime)
	defer cancel()
	rows, err := w.queue.backend.Lease(ctx, w.consumer, limit, token, w.settings.LeaseTime)
	return rows, token, err
}

// start gives each row to a goroutine. A row whose last start had no end may be one that kills its process: it waits until
// nothing else is at work, and runs alone, so that its neighbours are not taken down, nor blamed, with it. Its lease is
// renewed meanwhile.
func (w *worker) start(ctx context.Context, rows []*engine.QueueRow, token engine.Token) {
	var suspects []*taken
	for _, row := range rows {
		t := w.take(ctx, row, token)
		switch {
		case t == nil:
		case row.State == engine.StateWaiting && row.Unfinished > 1:
			suspects = append(suspects, t)
		default:
			w.launch(ctx, t)
		}
	}
	if w.wary = len(suspects) > 0; !w.wary {
		return
	}
	for _, t := range suspects[1:] { // a lease is a start: they would be blamed with the first
		w.giveBack(t)
	}
	if !w.idle(ctx, w.settings.LeaseTime/3) {
		w.giveBack(suspects[0]) // a handler takes long, or for ever: another process may be free
		return
	}
	w.launch(ctx, suspects[0])
	w.idle(ctx, w.settings.LeaseTime) // a handler that hangs must not stop the others for ever
}

// idle waits until nothing is at work, at most for d or until ctx ends.
func (w *worker) idle(ctx context.Context, d time.Duration) bool {
	for end := time.Now().Add(d); len(w.slots) > 0; {
		if time.Now().After(end) || sleep(ctx, idlePause) != nil {
			return false
		}
	}
	return true
}

const idlePause = 5 * time.Millisecond

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// giveBack gives up a message that was taken and not launched.
func (w *worker) giveBack(t *taken) {
	w.mu.Lock()
	delete(w.held, t.lease)
	w.mu.Unlock()
	t.cancel(nil)
	w.release(t.lease)
}

// taken is a leased message on its way to a handler.
type taken struct {
	lease  *engine.Lease
	msg    *message.Message
	cancel context.CancelCauseFunc
}

// take makes the message of a row, whose lease is renewed from here on; nil where there is nothing to be handled.
func (w *worker) take(ctx context.Context, row *engine.QueueRow, token engine.Token) *taken {
	lease, msg, err := w.queue.engine.NewLease(w.queue.owner, w.queue.backend, row, token, w.settings.LeaseTime)
	switch {
	case err != nil:
		w.settings.Logger.Error("A queue row cannot be read; it is tried again when its lease has run out", err, watermill.LogFields{"consumer": w.name, "seq": row.Seq})
		return nil
	case row.State == engine.StateWaiting && row.Unfinished > w.settings.MaxStarts:
		w.buryKiller(lease, errStarts(row.Unfinished-1))
		return nil
	}
	if topic := lease.Delivery().Topic; topic != "" {
		msg.Metadata.Set(inbox.TopicMetadataKey, topic)
	}
	msgCtx, cancel := context.WithCancelCause(inbox.WithLease(ctx, lease))
	msg.SetContext(msgCtx)
	w.mu.Lock()
	w.held[lease] = cancel
	w.mu.Unlock()
	return &taken{lease, msg, cancel}
}

func (w *worker) launch(ctx context.Context, t *taken) {
	w.slots <- struct{}{}
	w.work.Go(func() {
		defer func() {
			w.mu.Lock()
			delete(w.held, t.lease)
			w.mu.Unlock()
			t.cancel(nil)
			go t.lease.End() // a handler that hangs is not waited for
			<-w.slots
		}()
		w.deliver(ctx, t.lease, t.msg)
	})
}

// deliver hands the message over and ends its row by what became of it.
func (w *worker) deliver(ctx context.Context, lease *engine.Lease, msg *message.Message) {
	select {
	case w.out <- msg:
	case <-ctx.Done():
		w.release(lease)
		return
	}
	late := make(chan struct{}) // closed when the message has had CloseTimeout since ctx ended
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(w.settings.CloseTimeout, func() { close(late) }) })
	defer stop()
	select {
	case <-msg.Acked():
		ended := make(chan struct{})
		go func() { // acked by the handler itself, its work is still to be committed
			lease.End()
			close(ended)
		}()
		select {
		case <-ended:
			w.acked(lease)
		case <-late: // a handler that hangs: its lease runs out
		}
	case <-msg.Nacked():
		w.nacked(ctx, lease)
	case <-late:
		w.release(lease)
	}
}

// finish waits for what is at work.
func (w *worker) finish() { w.work.Wait() }

// sleep waits for something to do: a wake-up, the end of the pause, the next due time.
func (w *worker) sleep(ctx context.Context, wake <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(w.untilDue(ctx, d))
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// untilDue shortens a pause to the first due time.
func (w *worker) untilDue(ctx context.Context, d time.Duration) time.Duration {
	if d <= w.settings.PollMin {
		return d
	}
	next, waits, err := w.queue.backend.NextDue(ctx, w.consumer)
	if err != nil || !waits {
		return d
	}
	if next <= 0 { // due since the last look, or locked by the transaction that completes it
		next = mostImpatient
	}
	return max(min(d, next), w.settings.PollMin)
}

// mostImpatient is the pause before another look at a row that is due and could not be leased.
const mostImpatient = 50 * time.Millisecond
