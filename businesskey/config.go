package businesskey

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// OperationIDMetadataKey is the metadata field that carries the operation id by default.
const OperationIDMetadataKey = "operation_id"

// DefaultMaxResult is the largest result in bytes that is recorded by default.
const DefaultMaxResult = 64 << 10

// MissingPolicy says what becomes of a message without an operation id.
type MissingPolicy string

const (
	// Require refuses it with inbox.ErrNoOperationID. This is the default.
	Require MissingPolicy = "require"
	// PassThrough handles it without the second line of defence, and counts it ([Keys.PassedThrough]): for the time until
	// every producer sends ids.
	PassThrough MissingPolicy = "pass_through"
)

// Config is how [Keys] finds out which operation a message asks for. The zero value works.
type Config struct {
	// OperationID gives the id of the operation that the message asks for; empty is none. An error is
	// inbox.ErrOperationIDRefused, permanent. Defaults to the metadata field operation_id.
	OperationID func(msg *message.Message) (string, error)

	// Scope says whose operation ids they are. Handlers with one scope share their operations on purpose: a card is charged
	// once, whoever asks for it. Defaults to the message's consumer; without an inbox, to the handler's name.
	Scope func(msg *message.Message) string

	// Fingerprint gives the bytes that two messages of one operation must share: the fields that matter, where a producer
	// puts a time of sending into the payload. Defaults to the payload.
	Fingerprint func(msg *message.Message) []byte

	// Missing is the policy for messages without an operation id. Defaults to Require.
	Missing MissingPolicy

	// MaxResult is the largest result of [Keys.Do] in bytes; a larger one is inbox.ErrResultTooLarge, and nothing of the
	// operation is kept. Defaults to 64 KiB (DefaultMaxResult).
	MaxResult int

	// Logger is told, as Debug, of operations that were done before. Defaults to watermill.NopLogger.
	Logger watermill.LoggerAdapter
}

// Validate gives an [*inbox.ConfigError] for the first bad value.
func (c Config) Validate() error {
	switch c.Missing {
	case "", Require, PassThrough:
	default:
		return bad("Missing", c.Missing, fmt.Sprintf("must be %q or %q", Require, PassThrough))
	}
	if c.MaxResult < 0 {
		return bad("MaxResult", c.MaxResult, "must be a number of bytes, or 0 for the default")
	}
	return nil
}

func bad(field string, value any, reason string) error {
	return &inbox.ConfigError{Field: "businesskey.Config." + field, Value: value, Reason: reason}
}

func (c *Config) setDefaults() {
	if c.OperationID == nil {
		c.OperationID = func(msg *message.Message) (string, error) { return msg.Metadata.Get(OperationIDMetadataKey), nil }
	}
	if c.Fingerprint == nil {
		c.Fingerprint = func(msg *message.Message) []byte { return msg.Payload }
	}
	if c.Missing == "" {
		c.Missing = Require
	}
	if c.MaxResult == 0 {
		c.MaxResult = DefaultMaxResult
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}
