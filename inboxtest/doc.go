// Package inboxtest breaks things on purpose: it holds the fault injection with which the
// inbox tests itself, for use in your own tests too.
//
// [Proxy] stands between a program and its database: it adds latency, cuts connections,
// swallows the reply to a COMMIT and counts round trips. [DuplicateSubscriber] delivers every
// message several times. [Point] and [Child] kill a process at a chosen line.
//
// The package imports the standard library and watermill's message package only.
package inboxtest
