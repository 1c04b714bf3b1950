// Package inbox is a Watermill router middleware that handles every message exactly once, in the handler's own SQL
// transaction, over any Watermill Pub/Sub.
//
//	store, err := pgxinbox.NewStore(ctx, pool, pgxinbox.Config{}) // or sqlinbox.NewStore(ctx, db, …)
//	in, err := inbox.New(store, inbox.Config{Namespace: "billing"})
//	router.AddMiddleware(in.Middleware)
//	// in the handler:
//	tx, err := pgxinbox.TxFromContext(msg.Context())
//
// # What it promises
//
// A broker delivers at least once. For every message that reaches a handler behind this middleware, what the handler
// writes through its transaction is committed exactly once per consumer, source and message id, for as long as the
// memory of the message is kept:
//
//   - the claim of the message, the handler's writes and the messages it returns are one local transaction: all of it or
//     none of it;
//   - the broker is acked only after that commit; every earlier crash ends in a redelivery;
//   - a duplicate never runs the handler; messages that the first run returned and that no ack has proved to be
//     published come back with it, with the same UUIDs;
//   - what the library cannot know (no id, an id used for other content, a message older than the memory) it says in a
//     typed error or a counted outcome. It never guesses and never drops in silence.
//
// It does not turn the world into one transaction: a call to another system inside the handler can happen twice. And
// it knows messages: a producer that sends one command under two message ids has it handled twice, unless both carry one
// operation id and the handler has the second line of defence, package businesskey.
//
// # Order of middlewares
//
// Outermost first; each line says what goes wrong elsewhere:
//
//	metrics, tracing                              inside, they miss the time of the commit
//	PoisonQueueWithFilter(not IsTransient)        inside, it commits the partial work of a failed handler
//	CircuitBreaker, Throttle                      inside, they hold a transaction open while they wait
//	Retry{ResetContextOnRetry: true,              inside, it retries in a transaction that has failed
//	      ShouldRetry: not IsPermanent}
//	Timeout                                       inside, the claim and the commit have no limit
//	Recoverer                                     inside, a panic that it made an error is still rolled back, but
//	                                              the inbox can no longer tell a panic
//	inbox                                         once: to the router, or to each handler
//	businesskey                                   outside, it is ErrNested; on single handlers: on the router, it
//	                                              refuses the messages of handlers that have no operations
//	CorrelationID                                 either side: what a handler returns inherits the correlation id
//
// [IsTransient] and [IsPermanent] tell Retry and PoisonQueue what to do with the inbox's own errors.
package inbox
