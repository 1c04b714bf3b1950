package inbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// guard is the context that a delivery is worked on with. It is the message's context, except for cancellation:
//
//   - a deadline is kept as it is;
//   - a cancellation of a message that is acked by then is not passed on. A subscriber cancels the context as soon as
//     it sees the ack; the message cannot come again, so its work must not die with the context;
//   - a cancellation while the handler runs is passed on after the grace time.
type guard struct {
	msg    *message.Message
	grace  time.Duration
	cancel context.CancelCauseFunc
	stop   func() bool // stops listening to the message's context

	mu       sync.Mutex
	handling bool
	released bool
	timer    *time.Timer
}

// newGuard gives the context and its guard; release must be called when the delivery is over.
func newGuard(msg *message.Message, grace time.Duration) (context.Context, *guard) {
	parent := msg.Context()
	g := &guard{msg: msg, grace: grace}
	if parent.Done() == nil {
		return parent, g
	}

	ctx := context.WithoutCancel(parent)
	stopDeadline := func() {}
	if deadline, ok := parent.Deadline(); ok {
		ctx, stopDeadline = context.WithDeadline(ctx, deadline)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	g.cancel = func(cause error) { cancel(cause); stopDeadline() }
	if parent.Err() != nil { // do not leave it to the goroutine of AfterFunc: nothing should begin
		g.passOn(parent)
		return ctx, g
	}
	g.stop = context.AfterFunc(parent, func() { g.passOn(parent) })
	return ctx, g
}

func (g *guard) passOn(parent context.Context) {
	if isAcked(g.msg) {
		return
	}
	if _, has := parent.Deadline(); has && errors.Is(parent.Err(), context.DeadlineExceeded) {
		return // the guarded context has the same deadline
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		return
	}
	cause := context.Cause(parent)
	if g.handling && g.grace > 0 {
		g.timer = time.AfterFunc(g.grace, func() {
			if !isAcked(g.msg) {
				g.cancel(cause)
			}
		})
		return
	}
	g.cancel(cause)
}

// handle marks the time in which the handler runs: only then does the grace count.
func (g *guard) handle(running bool) {
	g.mu.Lock()
	g.handling = running
	g.mu.Unlock()
}

func (g *guard) release() {
	if g.cancel == nil {
		return
	}
	if g.stop != nil {
		g.stop()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.released = true
	if g.timer != nil {
		g.timer.Stop()
	}
	g.cancel(nil)
}

func isAcked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}
