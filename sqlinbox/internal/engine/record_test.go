package engine

import (
	"bytes"
	"maps"
	"testing"
	"testing/quick"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// The bytes stand in the tables of earlier versions: they must stay readable, and mean the same.
func TestRecordEncodingIsPinned(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("u", []byte{0x00, 0xff})
	msg.Metadata.Set("b", "2")
	msg.Metadata.Set("a", "1")
	require.Equal(t, []byte("\x01\x01\x01u\x02\x01a\x011\x01b\x012\x02\x00\xff"), encodeMessages([]*message.Message{msg}),
		"version, count, UUID, metadata in key order, payload")
}

func TestRecordKeepsEveryByte(t *testing.T) {
	t.Parallel()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for name, want := range map[string][]*message.Message{
		"every byte":    {{UUID: string(every), Metadata: message.Metadata{string(every): string(every)}, Payload: every}},
		"JSON":          {message.NewMessage("1", []byte(`{"nul":"\u0000"}`))},
		"empty":         {{}},
		"several":       {message.NewMessage("1", []byte("a")), message.NewMessage("2", nil), message.NewMessage("", []byte("b"))},
		"large":         {message.NewMessage("1", bytes.Repeat(every, 4096))},
		"much metadata": {{Metadata: message.Metadata{"": "", "a": "", "b": "\n", "ö": "😀"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireReadBack(t, want)
		})
	}
}

func TestRecordProperties(t *testing.T) {
	t.Parallel()
	require.NoError(t, quick.Check(func(uuids []string, key, value string, payload []byte) bool {
		var messages []*message.Message
		for _, uuid := range uuids {
			msg := message.NewMessage(uuid, payload)
			msg.Metadata.Set(key, value)
			messages = append(messages, msg)
		}
		requireReadBack(t, messages)
		return !t.Failed()
	}, nil))
}

// A row that was changed by hand, cut off, or written by a newer version is an error, never other messages.
func TestRecordThatCannotBeRead(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("uuid", []byte("payload"))
	msg.Metadata.Set("key", "value")
	good := encodeMessages([]*message.Message{msg, msg})
	for n := range len(good) {
		_, err := decodeMessages(good[:n])
		require.ErrorIs(t, err, errRecord, "cut off after %d bytes", n)
	}
	for name, bad := range map[string][]byte{
		"longer":         append(bytes.Clone(good), 0),
		"newer":          append([]byte{2}, good[1:]...),
		"huge count":     {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		"endless varint": bytes.Repeat([]byte{0xff}, 20),
	} {
		_, err := decodeMessages(bad)
		require.ErrorIs(t, err, errRecord, name)
	}
}

func FuzzDecodeMessages(f *testing.F) {
	msg := message.NewMessage("uuid", []byte("payload"))
	msg.Metadata.Set("key", "value")
	f.Add(encodeMessages([]*message.Message{msg, msg}))
	f.Add([]byte{1, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		messages, err := decodeMessages(b)
		if err == nil {
			requireReadBack(t, messages)
		}
	})
}

func requireReadBack(t *testing.T, want []*message.Message) {
	t.Helper()
	got, err := decodeMessages(encodeMessages(want))
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for i, msg := range got {
		require.Equal(t, want[i].UUID, msg.UUID)
		require.True(t, maps.Equal(want[i].Metadata, msg.Metadata))
		require.True(t, bytes.Equal(want[i].Payload, msg.Payload))
	}
}
