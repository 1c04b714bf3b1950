package inbox

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Identity tells which message this is: the id, and the source whose id space it is from (empty when all producers
// share one). It must give the same answer for every copy of a message and for no other message.
//
// An empty id is refused with [ErrNoMessageID]; an error is wrapped with [ErrMessageIDRefused] unless it already is
// one of this package's permanent errors. The business id of an entity ("order 42") is not a message id: two
// different commands about one order would be taken for copies.
type Identity func(msg *message.Message) (source, id string, err error)

// ByUUID takes the message's UUID: the default. Right wherever the publisher sets it once and the broker keeps it.
func ByUUID() Identity {
	return func(msg *message.Message) (string, string, error) { return "", msg.UUID, nil }
}

// ByMetadata takes a metadata field that the producer sets once per message.
func ByMetadata(field string) Identity {
	return func(msg *message.Message) (string, string, error) {
		id := msg.Metadata.Get(field)
		if id == "" {
			return "", "", fmt.Errorf("%w: metadata field %q is empty", ErrNoMessageID, field)
		}
		return "", id, nil
	}
}

// ByJoinedMetadata joins several metadata fields, for example "source_service" and "outbox_id", into one id. All of
// them must be set. The parts are joined with "/", and "/" and "\" inside a part are escaped with "\", so that no two
// different lists of parts give the same id.
func ByJoinedMetadata(fields ...string) Identity {
	fields = append([]string(nil), fields...)
	escape := strings.NewReplacer(`\`, `\\`, `/`, `\/`)
	return func(msg *message.Message) (string, string, error) {
		if len(fields) == 0 {
			return "", "", fmt.Errorf("%w: ByJoinedMetadata was given no fields", ErrNoMessageID)
		}
		var b strings.Builder
		for i, field := range fields {
			part := msg.Metadata.Get(field)
			if part == "" {
				return "", "", fmt.Errorf("%w: metadata field %q is empty", ErrNoMessageID, field)
			}
			if i > 0 {
				b.WriteByte('/')
			}
			b.WriteString(escape.Replace(part))
		}
		return "", b.String(), nil
	}
}

// cloudEventsPrefixes are how the protocol bindings of CloudEvents 1.0 carry attributes: Kafka "ce_", HTTP and NATS
// "ce-", AMQP "cloudEvents_" and "cloudEvents:".
var cloudEventsPrefixes = [...]string{"ce_", "ce-", "cloudEvents_", "cloudEvents:"}

// ByCloudEvents takes the id and source attributes of a CloudEvent, from metadata (binary mode, as the Kafka, HTTP,
// NATS and AMQP bindings name them) or, where the content type is application/cloudevents+json, from the JSON payload
// (structured mode). CloudEvents promises that source and id together are unique for each distinct event; both must
// be set.
func ByCloudEvents() Identity {
	return func(msg *message.Message) (string, string, error) {
		for _, prefix := range cloudEventsPrefixes {
			id, source := msg.Metadata.Get(prefix+"id"), msg.Metadata.Get(prefix+"source")
			if id == "" && source == "" {
				continue
			}
			return cloudEvent(source, id)
		}
		if !structuredCloudEvent(msg.Metadata) {
			return "", "", fmt.Errorf("%w: no CloudEvents attributes in the metadata", ErrNoMessageID)
		}
		return structuredIdentity(msg.Payload)
	}
}

// structuredIdentity reads id and source from a CloudEvent in JSON. Into a map: a struct's fields would take other
// spellings too. Text that is no Unicode, which encoding/json replaces, could make two ids one: it is refused.
func structuredIdentity(payload []byte) (string, string, error) {
	var event map[string]json.RawMessage
	if err := json.Unmarshal(payload, &event); err != nil {
		return "", "", fmt.Errorf("payload is not a CloudEvent in JSON: %w", err)
	}
	var id, source string
	for _, attribute := range []struct {
		name string
		to   *string
	}{{"id", &id}, {"source", &source}} {
		raw, there := event[attribute.name]
		if !there {
			continue
		}
		if err := json.Unmarshal(raw, attribute.to); err != nil {
			return "", "", fmt.Errorf("the CloudEvent's %s is no string: %w", attribute.name, err)
		}
		if strings.ContainsRune(*attribute.to, utf8.RuneError) {
			return "", "", fmt.Errorf("the CloudEvent's %s is no Unicode text", attribute.name)
		}
	}
	return cloudEvent(source, id)
}

func cloudEvent(source, id string) (string, string, error) {
	if id == "" || source == "" {
		return "", "", fmt.Errorf("%w: a CloudEvent needs both id and source", ErrNoMessageID)
	}
	return source, id, nil
}

func structuredCloudEvent(metadata message.Metadata) bool {
	for _, field := range [...]string{"content-type", "Content-Type", "content_type"} {
		if strings.HasPrefix(metadata.Get(field), "application/cloudevents+json") {
			return true
		}
	}
	return false
}

// NewUUID gives a new UUIDv7 (RFC 9562): 48 bits of milliseconds, then randomness. Prefer it for message ids: the
// memory's index grows at its end, and the time inside the id serves retention and the late guard. A random UUID costs
// the database many times the write-ahead log on a large memory.
func NewUUID() string {
	var u [16]byte
	_, _ = rand.Read(u[6:]) // never fails: crypto/rand ends the program first
	putMillis(u[:6], uint64(time.Now().UnixMilli()))
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return StorageKey(u).String()
}
