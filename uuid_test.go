package inbox_test

import (
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

func TestNewUUIDIsAVersion7(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for range 1000 {
		require.Regexp(t, form, inbox.NewUUID())
	}
}

func TestNewUUIDCarriesTheMillisecond(t *testing.T) {
	t.Parallel()
	for range 1000 {
		before := time.Now().UnixMilli()
		id := inbox.NewUUID()
		after := time.Now().UnixMilli()
		at, ok := inbox.IDTime(id)
		require.True(t, ok, id)
		require.GreaterOrEqual(t, at.UnixMilli(), before)
		require.LessOrEqual(t, at.UnixMilli(), after)
	}
}

// In one goroutine the ids of later milliseconds are greater as text, and so are their storage keys.
func TestNewUUIDAscendsByMilliseconds(t *testing.T) {
	t.Parallel()
	last := inbox.NewUUID()
	for steps := 0; steps < 5; {
		next := inbox.NewUUID()
		then, _ := inbox.IDTime(last)
		now, _ := inbox.IDTime(next)
		require.False(t, now.Before(then))
		if now.After(then) {
			require.Greater(t, next, last)
			require.Greater(t,
				inbox.Key{Consumer: "c", ID: next}.Storage().String(),
				inbox.Key{Consumer: "c", ID: last}.Storage().String())
			steps++
		}
		last = next
	}
}

func TestNewUUIDIsUnique(t *testing.T) {
	t.Parallel()
	const goroutines, each = 8, 5000
	ids := make([][]string, goroutines)
	var wg sync.WaitGroup
	for g := range ids {
		wg.Go(func() {
			for range each {
				ids[g] = append(ids[g], inbox.NewUUID())
			}
		})
	}
	wg.Wait()
	seen := make(map[string]bool, goroutines*each)
	for _, some := range ids {
		for _, id := range some {
			seen[id] = true
		}
	}
	require.Len(t, seen, goroutines*each)
}

// 62 random bits: every bit after the version and the variant is set sometimes and clear sometimes.
func TestNewUUIDIsRandomBehindTheTime(t *testing.T) {
	t.Parallel()
	digits := map[[2]byte]bool{}
	for range 2000 {
		id := inbox.NewUUID()
		for i := 15; i < len(id); i++ {
			digits[[2]byte{byte(i), id[i]}] = true
		}
	}
	for i := 15; i < 36; i++ {
		want := 16
		switch i {
		case 18, 23: // hyphens
			want = 1
		case 19: // the variant leaves two bits
			want = 4
		}
		got := 0
		for d := range digits {
			if int(d[0]) == i {
				got++
			}
		}
		require.Equal(t, want, got, "digit %d", i)
	}
}
