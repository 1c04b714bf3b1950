package inbox

import (
	"reflect"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// MismatchPolicy says what becomes of a message whose id was used before for other content.
type MismatchPolicy string

const (
	// MismatchReject refuses it with [ErrMismatch]. This is the default.
	MismatchReject MismatchPolicy = "reject"
	// MismatchReport counts it, logs it once per handler and treats it as a duplicate: for producers that serialize
	// one message differently each time they send it.
	MismatchReport MismatchPolicy = "report"
)

// Config is how an [Inbox] finds out which message it has in hand. The zero value works: the consumer is the router's
// handler, the id is the message's UUID, the fingerprint is over the payload.
type Config struct {
	// Namespace keeps services apart that share a database schema: the consumer is Namespace + "/" + handler name.
	// It must not contain "/". Defaults to none.
	Namespace string

	// Consumer names the whole consumer (Namespace is not added): keep the old name here when a handler is renamed,
	// or its memory starts empty. An empty answer is [ErrNoConsumer]. Defaults to the handler's name in the router.
	Consumer func(msg *message.Message) string

	// Identity tells which message it is. Defaults to ByUUID().
	Identity Identity

	// Fingerprint gives the bytes that two copies of a message must share. It must be a pure function of the message.
	// Defaults to the payload.
	Fingerprint func(msg *message.Message) []byte

	// Mismatch is the policy for an id used for other content. Defaults to MismatchReject.
	Mismatch MismatchPolicy

	// MessageTime tells when the message was made; zero is unknown. It must be equal in every copy. It serves
	// retention and the late guard, never the key. Defaults to the time inside the id (UUIDv7, ULID), if any.
	MessageTime func(msg *message.Message) time.Time

	// KeyTime gives the producer's own unchanging time of the message, for the storage key of ids that carry no time
	// (partitions need it). It is a promise: another time for the same id is another key and a second effect. It
	// cannot be added to or removed from a consumer that has a memory ([ErrKeyScheme]). Defaults to none.
	KeyTime func(msg *message.Message) time.Time

	// Replay says how long the messages that handlers return come back with duplicates. Defaults to ReplayUntilAcked.
	Replay ReplayPolicy

	// Outbox publishes what handlers return inside their transaction, to the handler's publish topic; nothing is then
	// recorded, and nothing returned to the router. Defaults to none: they are recorded, and the router publishes them.
	Outbox Outbox

	// OrderKey is for messages that are stored for later: those of one consumer with equal keys are handled one after the
	// other, in the order of their intake, and a dead one blocks those behind it. An empty key is no order. Defaults to none.
	OrderKey func(msg *message.Message) string

	// Claims proposes the operation of a message, so that its claim travels together with the message's own, which saves
	// a round trip on pgx: set it to (*businesskey.Keys).Claims where every handler has that middleware. Defaults to none.
	Claims Claims

	// Bypass is true for messages that the inbox must leave alone: no transaction, no memory, handled every time they
	// arrive. See [BypassHandlers] and [BypassUnknown]. Defaults to none.
	Bypass func(msg *message.Message) bool

	// Grace is how long a handler may go on after its message's context was cancelled, for whatever reason (the router
	// closes, a broker's ack deadline passed); a deadline is obeyed at once. Keep it below the router's CloseTimeout.
	// Defaults to 0: the cancellation reaches the handler at once.
	Grace time.Duration

	// Observer is told about every delivery. Defaults to none.
	Observer Observer

	// Logger gets what an operator must know. Duplicates are Debug. Defaults to watermill.NopLogger.
	Logger watermill.LoggerAdapter
}

func (c *Config) setDefaults() {
	if c.Identity == nil {
		c.Identity = ByUUID()
	}
	if c.Mismatch == "" {
		c.Mismatch = MismatchReject
	}
	if c.Replay == "" {
		c.Replay = ReplayUntilAcked
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}

// Validate checks the values as New does and gives a [*ConfigError] for the first bad one.
func (c Config) Validate() error {
	if strings.Contains(c.Namespace, "/") {
		return &ConfigError{"inbox.Config.Namespace", c.Namespace, `must not contain "/", which separates it from the handler's name`}
	}
	if len(c.Namespace) > MaxIDLength/2 {
		return &ConfigError{"inbox.Config.Namespace", c.Namespace, "is too long"}
	}
	switch c.Mismatch {
	case "", MismatchReject, MismatchReport:
	default:
		return &ConfigError{"inbox.Config.Mismatch", c.Mismatch, "must be MismatchReject or MismatchReport"}
	}
	switch c.Replay {
	case "", ReplayUntilAcked, ReplayAlways:
	default:
		return &ConfigError{"inbox.Config.Replay", c.Replay, "must be ReplayUntilAcked or ReplayAlways"}
	}
	if c.Grace < 0 {
		return &ConfigError{"inbox.Config.Grace", c.Grace, "must not be negative"}
	}
	return nil
}

// isNil finds a nil pointer inside an interface too: a forgotten error check often leaves one.
func isNil(store any) bool {
	if store == nil {
		return true
	}
	switch v := reflect.ValueOf(store); v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan:
		return v.IsNil()
	default:
		return false
	}
}

// BypassHandlers gives a Config.Bypass that is true for messages of the named router handlers: a watermill Forwarder
// ("events_forwarder") or Requeuer ("requeuer") on a router that has the inbox as router-level middleware.
func BypassHandlers(names ...string) func(*message.Message) bool {
	set := toSet(names)
	return func(msg *message.Message) bool { return set[message.HandlerNameFromCtx(msg.Context())] }
}

// MessageNamer is the part of a cqrs.CommandEventMarshaler that [BypassUnknown] needs.
type MessageNamer interface {
	NameFromMessage(msg *message.Message) string
}

// BypassUnknown gives a Config.Bypass that is true for commands and events other than the named ones: a CQRS processor
// acks those without a handler, and remembering them would be waste.
func BypassUnknown(marshaler MessageNamer, names ...string) func(*message.Message) bool {
	set := toSet(names)
	return func(msg *message.Message) bool { return !set[marshaler.NameFromMessage(msg)] }
}

func toSet(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}
