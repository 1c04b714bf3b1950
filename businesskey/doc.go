// Package businesskey is the second line of defence: the same business operation has one effect, also when its producer
// sends it again in another message. The inbox knows messages; only the producer knows that "add 100 to the account" under
// a new UUID is the command it sent a minute ago. It says so with an operation id.
//
//	keys, err := businesskey.New(store, businesskey.Config{})
//	in, err := inbox.New(store, inbox.Config{Claims: keys.Claims})
//	router.AddMiddleware(in.Middleware)
//	handler := router.AddConsumerHandler("transfer", "commands", sub, handle)
//	handler.AddMiddleware(keys.Middleware) // inside the inbox
//
// The operation id is claimed in the message's own transaction and committed with the handler's work, so a crash leaves
// either all of it or nothing. A message whose operation is done is remembered like any other, its handler is not called,
// and it gives back what the operation gave. The same operation id with other content is inbox.ErrMismatch.
//
// The middleware belongs on single handlers, not on the router: other handlers' messages have no operation id, and would
// be refused. It belongs inside the inbox's middleware; outside it, both would begin a transaction, which is
// inbox.ErrNested. Without an inbox each operation has a transaction of its own.
//
// [Keys.Do] is for several operations in one handler, and for calls outside any message, such as an HTTP handler that
// shares its operations with a message handler by [Operation].Scope.
//
// An operation is remembered for ever. Its id is the producer's promise: one id for each thing that is to happen once. It
// is not the id of an entity ("order-42" may be changed twice), and not the notification id of Watermill's requestreply
// (requestreply.OperationID is made anew for each call of SendWithReply, so a command that is sent again has another one).
package businesskey
