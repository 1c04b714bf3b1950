package tests_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"
)

// TestDeduplicator shows what the README's comparison says of Watermill's Deduplicator with its defaults.
func TestDeduplicator(t *testing.T) {
	t.Parallel()
	deduplicate := (&middleware.Deduplicator{Timeout: time.Hour}).Middleware

	t.Run("takes different payloads for copies", func(t *testing.T) {
		handled := 0
		handler := deduplicate(func(*message.Message) ([]*message.Message, error) {
			handled++
			return nil, nil
		})
		const sent = 200_000
		for i := range sent {
			_, err := handler(message.NewMessage(strconv.Itoa(i), []byte(strconv.Itoa(i))))
			require.NoError(t, err)
		}
		t.Logf("%d different small payloads, %d handled", sent, handled)
		require.Less(t, handled, sent/10)
	})

	t.Run("loses a message whose handler failed", func(t *testing.T) {
		handled := 0
		handler := deduplicate(func(*message.Message) ([]*message.Message, error) {
			if handled++; handled == 1 {
				return nil, strconv.ErrRange
			}
			return nil, nil
		})
		msg := message.NewMessage("id", []byte("failed once"))
		_, err := handler(msg.Copy())
		require.Error(t, err)
		_, err = handler(msg.Copy())
		require.NoError(t, err)
		require.Equal(t, 1, handled, "the redelivery never reached the handler")
	})
}
