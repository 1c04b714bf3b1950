package inbox_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestOneInboxServesManyGoroutines(t *testing.T) {
	t.Parallel()
	store, seen := newFakeStore(), &events{}
	in := mustNew(t, store, inbox.Config{Logger: watermill.NewCaptureLogger(), Observer: seen.observe})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				_, _ = in.As(fmt.Sprint("c", g%2))(func(msg *message.Message) ([]*message.Message, error) {
					if i%3 == 0 {
						msg.Ack()
					}
					return nil, nil
				})(message.NewMessage(fmt.Sprint(i), nil))
			}
		})
	}
	wg.Wait()
	require.Len(t, store.keys(), 200)
	require.Len(t, seen.all(), 800)
}
