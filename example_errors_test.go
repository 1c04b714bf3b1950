package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Every error names the phase, the message and the cause.
func ExampleError() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{})
	check(err)
	declined := errors.New("card declined")

	_, err = in.As("charge")(func(*message.Message) ([]*message.Message, error) {
		return nil, declined
	})(message.NewMessage("42", nil))

	fmt.Println(err)
	fmt.Println(errors.Is(err, declined))
	var e *inbox.Error
	if errors.As(err, &e) && e.Phase == inbox.PhaseHandle {
		fmt.Println("the handler failed on", e.Key.ID)
	}
	// Output:
	// inbox: handle charge/42: card declined
	// true
	// the handler failed on 42
}

// Where an error happened tells what can be done about it.
func ExamplePhase() {
	for _, phase := range []inbox.Phase{inbox.PhaseIdentify, inbox.PhaseClaim, inbox.PhaseHandle, inbox.PhaseCommit} {
		fmt.Println(phase)
	}
	// Output:
	// identify
	// claim
	// handle
	// commit
}

// The two questions of middlewares outside of the inbox: would a retry help, and is the message at fault at all?
func ExampleIsPermanent() {
	for _, err := range []error{inbox.ErrMismatch, inbox.ErrInFlight, errors.New("card declined")} {
		fmt.Println(inbox.IsPermanent(err), inbox.IsTransient(err))
	}
	// Output:
	// true false
	// false true
	// false false
}

// An Observer is told once about every delivery: for metrics, and for alarms on what should never happen.
func ExampleObserver() {
	var handled, duplicates, lost atomic.Int64
	var observer inbox.Observer = func(_ context.Context, e inbox.Event) {
		switch e.Outcome {
		case inbox.OutcomeProcessed:
			handled.Add(1)
		case inbox.OutcomeDuplicate:
			duplicates.Add(1)
		case inbox.OutcomeLost, inbox.OutcomeAckedEarly:
			lost.Add(1)
		}
	}

	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Observer: observer})
	check(err)
	handler := in.As("charge")(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for _, id := range []string{"1", "2", "1", "1"} {
		_, err := handler(message.NewMessage(id, nil))
		check(err)
	}
	fmt.Println("handled", handled.Load(), "duplicates", duplicates.Load(), "lost", lost.Load())
	// Output: handled 2 duplicates 2 lost 0
}

// What an Event says of a delivery.
func ExampleEvent() {
	db, store := openStore()
	defer db.Close()
	in, err := inbox.New(store, inbox.Config{Observer: func(_ context.Context, e inbox.Event) {
		fmt.Println(e.Key, e.Outcome, "unguarded:", e.Unguarded, "error:", e.Err)
	}})
	check(err)
	handler := in.As("charge")(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	for _, id := range []string{"42", "0198c0de-0000-7000-8000-000000000042"} { // the second one carries its time
		_, err := handler(message.NewMessage(id, nil))
		check(err)
	}
	// Output:
	// charge/42 processed unguarded: true error: <nil>
	// charge/0198c0de-0000-7000-8000-000000000042 processed unguarded: false error: <nil>
}

// Outcomes are few and fixed, so that they can be the label of a metric.
func ExampleOutcome() {
	fmt.Println(inbox.OutcomeProcessed, inbox.OutcomeDuplicate, inbox.OutcomeInFlight, inbox.OutcomeFailed)
	// Output: processed duplicate in_flight failed
}

// A producer that serializes a message anew each time it sends it: only what matters belongs to the fingerprint.
// Where that cannot be told, MismatchReport lets the difference pass and counts it.
func ExampleMismatchPolicy() {
	db, store := openStore()
	defer db.Close()
	for _, policy := range []inbox.MismatchPolicy{inbox.MismatchReject, inbox.MismatchReport} {
		in, err := inbox.New(store, inbox.Config{
			Mismatch: policy,
			Observer: func(_ context.Context, e inbox.Event) {
				fmt.Println(policy, e.Outcome, errors.Is(e.Err, inbox.ErrMismatch))
			},
		})
		check(err)
		handler := in.As(string(policy))(func(*message.Message) ([]*message.Message, error) { return nil, nil })
		_, _ = handler(message.NewMessage("42", []byte(`{"amount": 10}`)))
		_, _ = handler(message.NewMessage("42", []byte(`{"amount": 20}`)))
	}
	// Output:
	// reject processed false
	// reject mismatch true
	// report processed false
	// report mismatch false
}

// A handler marks what no retry cures: with middleware.Retry's ShouldRetry it is not tried again, and from the queue it is
// dead at once.
func ExamplePermanent() {
	err := inbox.Permanent(errors.New("no such account"))
	fmt.Println(err, inbox.IsPermanent(err))
	// Output: no such account true
}
