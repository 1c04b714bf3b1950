package engine

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// Record is what a handler returned, to be kept in its transaction.
type Record struct {
	Key      inbox.StorageKey
	Handler  string // as readable text
	Messages []byte
}

// record encodes what the handler returned; nil when there is nothing to keep.
func (p *process) record(messages []*message.Message) *Record {
	if len(messages) == 0 || !p.d.Record {
		return nil
	}
	return &Record{Key: p.key, Handler: EncodeText(p.d.Handler), Messages: encodeMessages(messages)}
}

// replay puts the recorded messages of a duplicate into the result.
func (p *process) replay(row *Row) error {
	if len(row.Recorded) == 0 {
		return nil
	}
	messages, err := decodeMessages(row.Recorded)
	if err != nil {
		return err
	}
	p.result.Messages, p.result.RecordedBy = messages, row.RecordedBy
	return nil
}

// recordVersion is the first byte of the encoding.
const recordVersion = 1

// encodeMessages writes UUID, metadata in key order and payload of each message, every string and list with its length
// in front, so that all bytes come out as they went in.
func encodeMessages(messages []*message.Message) []byte {
	b := []byte{recordVersion}
	b = binary.AppendUvarint(b, uint64(len(messages)))
	for _, msg := range messages {
		b = appendString(b, msg.UUID)
		b = binary.AppendUvarint(b, uint64(len(msg.Metadata)))
		for _, key := range slices.Sorted(maps.Keys(msg.Metadata)) {
			b = appendString(b, key)
			b = appendString(b, msg.Metadata[key])
		}
		b = appendString(b, string(msg.Payload))
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var errRecord = errors.New("recorded messages cannot be read: their row was changed, or a newer version wrote it")

func decodeMessages(b []byte) ([]*message.Message, error) {
	r := reader{left: b}
	if v := r.bytes(1); len(v) != 1 || v[0] != recordVersion {
		return nil, errRecord
	}
	var messages []*message.Message
	for range r.count() {
		msg := message.NewMessage(r.string(), nil)
		for range r.count() {
			key := r.string()
			msg.Metadata[key] = r.string()
		}
		msg.Payload = message.Payload(r.string())
		messages = append(messages, msg)
	}
	if r.failed || len(r.left) > 0 {
		return nil, errRecord
	}
	return messages, nil
}

// reader takes parts off the front; after a part that is not there it gives zero values and failed.
type reader struct {
	left   []byte
	failed bool
}

func (r *reader) count() uint64 {
	n, size := binary.Uvarint(r.left)
	if size <= 0 || n > uint64(len(r.left)) { // an element takes at least a byte
		r.failed, r.left = true, nil
		return 0
	}
	r.left = r.left[size:]
	return n
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.left)) {
		r.failed, r.left = true, nil
		return nil
	}
	part := r.left[:n]
	r.left = r.left[n:]
	return part
}

func (r *reader) string() string { return string(r.bytes(r.count())) }
