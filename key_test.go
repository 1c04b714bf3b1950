package inbox_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/require"

	inbox "github.com/watermill-contrib/watermill-inbox"
)

// The values were computed outside of this program, with Python's hashlib and struct. A change of any of them gives
// every remembered message another key, and so a second effect: it needs a new key scheme (inbox.ErrKeyScheme), never
// a new value here.
func TestStorageKeyIsPinned(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		key  inbox.Key
		want string
	}{
		{"plain", inbox.Key{Consumer: "charge", ID: "42"}, "00b7ee2a-fda1-1d87-9680-44976f3f07fa"},
		{"namespace and source", inbox.Key{Consumer: "billing/charge", Source: "shop", ID: "42"}, "00a620e8-d953-3a13-d1d9-5759c75bb2a8"},
		{"all empty", inbox.Key{}, "00ec7bf0-b507-32b4-9f82-28e07d243653"},
		{"any bytes", inbox.Key{Consumer: "c\x00\xff", Source: `\`, ID: `a\b/c😀`}, "0011ac5d-6b01-1235-c93f-0dd2543da600"},
		{"longest", inbox.Key{Consumer: "charge", ID: strings.Repeat("x", inbox.MaxIDLength)}, "006e0c65-23e9-c607-ab6a-f79a5ba6b42f"},
		{"UUIDv4", inbox.Key{Consumer: "charge", ID: "f47ac10b-58cc-4372-a567-0e02b2c3d479"}, "00b52c59-489c-069a-4082-d794e55aed54"},
		{"UUIDv7 of RFC 9562", inbox.Key{Consumer: "charge", ID: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"}, "017f22e2-79b0-7554-fa77-8c44116e9080"},
		{"the same in upper case", inbox.Key{Consumer: "charge", ID: "017F22E2-79B0-7CC3-98C4-DC0C0C07398F"}, "017f22e2-79b0-4e89-343e-f6b5b4c7b69e"},
		{"ULID of its specification", inbox.Key{Consumer: "charge", ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "01563e3a-b5d3-d836-7549-aa2828a47e94"},
		{"the same in lower case", inbox.Key{Consumer: "charge", ID: "01arz3ndektsv4rrffq69g5fav"}, "01563e3a-b5d3-6233-290a-aba6f3cab867"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, tt.key.Storage().String())
			require.Equal(t, tt.want, inbox.Delivery{Key: tt.key}.StorageKey().String())
		})
	}
}

// The first and the last millisecond that count as a time, and their neighbours, which do not.
func TestStorageKeyTimeBoundaries(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		id, want string
		time     string // empty: none
	}{
		{"014QKJWXZZ0123456789ABCDEF", "004574dd-2810-b872-230c-766b73588945", ""},
		{"0125e72e-77ff-7abc-8def-0123456789ab", "00dbcc5a-ff26-f818-6d77-19b290caf2e0", ""},
		{"014QKJWY000123456789ABCDEF", "0125e72e-7800-c1db-71a7-1df83bb2d7a7", "2010-01-01T00:00:00Z"},
		{"0125e72e-7800-7abc-8def-0123456789ab", "0125e72e-7800-bb19-cae1-4b7ff742f646", "2010-01-01T00:00:00Z"},
		{"03QCPC7NZZ0123456789ABCDEF", "03bb2cc3-d7ff-32f8-defd-c01aa5933730", "2099-12-31T23:59:59.999Z"},
		{"03bb2cc3-d7ff-7abc-8def-0123456789ab", "03bb2cc3-d7ff-92e5-c56d-f098ce46651e", "2099-12-31T23:59:59.999Z"},
		{"03QCPC7P000123456789ABCDEF", "001b75b6-191a-fc3c-5bae-105dde37f222", ""},
		{"03bb2cc3-d800-7abc-8def-0123456789ab", "00e56f5b-8738-ee14-a117-8a6ca9e795e8", ""},
	} {
		t.Run(tt.id, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, inbox.Key{Consumer: "c", ID: tt.id}.Storage().String())
			got, ok := inbox.IDTime(tt.id)
			require.Equal(t, tt.time != "", ok)
			if ok {
				require.Equal(t, tt.time, got.Format(time.RFC3339Nano))
			} else {
				require.True(t, got.IsZero())
			}
		})
	}
}

func TestIDTimeOfOtherIDs(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{
		"empty":                          "",
		"number":                         "42",
		"UUIDv1":                         "c232ab00-9414-11ec-b3c8-9f6bdeced846",
		"UUIDv4":                         "f47ac10b-58cc-4372-a567-0e02b2c3d479",
		"UUIDv6":                         "1ec9414c-232a-6b00-b3c8-9f6bdeced846",
		"UUIDv8":                         "017f22e2-79b0-8cc3-98c4-dc0c0c07398f",
		"version 7, NCS variant":         "017f22e2-79b0-7cc3-08c4-dc0c0c07398f",
		"version 7, Microsoft's variant": "017f22e2-79b0-7cc3-d8c4-dc0c0c07398f",
		"UUIDv7 without hyphens":         "017f22e279b07cc398c4dc0c0c07398f",
		"UUIDv7 in braces":               "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
		"UUIDv7 with a letter too far":   "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
		"UUIDv7 with a shifted hyphen":   "017f22e27-9b0-7cc3-98c4-dc0c0c07398f",
		"36 hyphens":                     strings.Repeat("-", 36),
		"36 bytes that are no text":      strings.Repeat("\xff", 36),
		"ULID with an I":                 "01ARZ3NDEKTSV4RRFFQ69G5FAI",
		"ULID with an L":                 "01ARZ3NDEKTSV4RRFFQ69G5FAL",
		"ULID with an O":                 "O1ARZ3NDEKTSV4RRFFQ69G5FAV",
		"ULID with a u":                  "01ARZ3NDEKTSV4RRFFQ69G5FAu",
		"ULID over 128 bits":             "81ARZ3NDEKTSV4RRFFQ69G5FAV",
		"ULID of the year 10889":         "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
		"ULID of 1970":                   "00000000000123456789ABCDEF",
		"ULID with a byte over":          "01ARZ3NDEKTSV4RRFFQ69G5FAVX",
		"26 bytes that are no text":      strings.Repeat("\x80", 26),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ok := inbox.IDTime(id)
			require.False(t, ok)
			require.Zero(t, inbox.Key{Consumer: "c", ID: id}.Storage()[0])
		})
	}
}

func TestStorageAtTakesTheTimeOnlyWhereTheIDHasNone(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1700000000123)
	plain := inbox.Key{Consumer: "charge", ID: "42"}
	require.Equal(t, "018bcfe5-687b-1d87-9680-44976f3f07fa", plain.StorageAt(at).String())
	require.Equal(t, plain.StorageAt(at), plain.StorageAt(at.In(time.FixedZone("Tokyo", 9*3600)).Add(999*time.Microsecond)),
		"zone and microseconds are no part of the key")
	require.Equal(t, plain.StorageAt(at), inbox.Delivery{Key: plain, KeyTime: at, HasKeyTime: true}.StorageKey())

	timed := inbox.Key{Consumer: "charge", ID: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"}
	require.Equal(t, timed.Storage(), timed.StorageAt(at), "the id's own time wins")

	for _, none := range []time.Time{
		{},
		time.UnixMilli(0),
		time.UnixMilli(-1),
		time.Date(2009, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
		time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
	} {
		require.Equal(t, plain.Storage(), plain.StorageAt(none), "%s is outside of the years that count", none)
	}
	require.Equal(t, byte(1), plain.StorageAt(time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC))[0])
	require.Equal(t, byte(3), plain.StorageAt(time.Date(2099, 12, 31, 23, 59, 59, 999_999_999, time.UTC))[0])
}

// Joined without their lengths these parts would be the same text.
func TestStorageKeyKeepsThePartsApart(t *testing.T) {
	t.Parallel()
	seen := map[inbox.StorageKey]inbox.Key{}
	for _, key := range []inbox.Key{
		{Consumer: "ab", Source: "c", ID: "d"},
		{Consumer: "a", Source: "bc", ID: "d"},
		{Consumer: "a", Source: "b", ID: "cd"},
		{Consumer: "abc", Source: "", ID: "d"},
		{Consumer: "", Source: "abc", ID: "d"},
		{Consumer: "abcd"},
		{Source: "abcd"},
		{ID: "abcd"},
		{Consumer: "a/b", ID: "c"},
		{Consumer: "a", ID: "b/c"},
		{Consumer: "a", Source: "b", ID: "c"},
		{Consumer: "\x00\x00\x00\x01a", ID: "b"},
		{Consumer: "a", ID: "\x00\x00\x00\x01b"},
	} {
		other, taken := seen[key.Storage()]
		require.False(t, taken, "%#v and %#v", key, other)
		seen[key.Storage()] = key
	}
}

// Pairs that a collation, a trimming column or a Unicode normalisation would merge.
func TestStorageKeyKeepsSimilarIDsApart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 255)
	seen := map[inbox.StorageKey]string{}
	for _, id := range []string{
		"k", "K", "k ", " k", "k\x00", "k\t", "ö", "o", "o\u0308", "\u212a", "ß", "ss", "\xff", "\xfe", "\ufffd", "",
		`a\b/c`, `a/b\c`, "'; --", "😀", long + "1", long + "2", long,
	} {
		s := inbox.Key{Consumer: "c", ID: id}.Storage()
		other, taken := seen[s]
		require.False(t, taken, "%q and %q", id, other)
		seen[s] = id
	}
}

func TestKeysOfTimeOrderedIDsAscend(t *testing.T) {
	t.Parallel()
	last := inbox.Key{Consumer: "c", ID: "no time"}.Storage().String()
	for ms := int64(1262304000000); ms < 4102444800000; ms += 1_000_003_000_007 / 7 {
		id := uuidv7At(ms)
		got, ok := inbox.IDTime(id)
		require.True(t, ok, id)
		require.Equal(t, ms, got.UnixMilli())
		next := inbox.Key{Consumer: "c", ID: id}.Storage().String()
		require.Greater(t, next, last)
		last = next
	}
}

func TestStorageProperties(t *testing.T) {
	t.Parallel()
	require.NoError(t, quick.Check(func(consumer, source, id []byte, ms int64) bool {
		checkStorage(t, string(consumer), string(source), string(id), ms)
		return !t.Failed()
	}, &quick.Config{MaxCount: 2000}))
}

func FuzzStorage(f *testing.F) {
	f.Add("charge", "", "42", int64(0))
	f.Add("charge", "shop", "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", int64(1700000000123))
	f.Add("charge", "shop", "01ARZ3NDEKTSV4RRFFQ69G5FAV", int64(-1))
	f.Add("", "\x00", "\xff", int64(4102444800000))
	f.Fuzz(checkStorage)
}

// checkStorage holds the storage key against its definition, written down a second time.
func checkStorage(t *testing.T, consumer, source, id string, ms int64) {
	key := inbox.Key{Consumer: consumer, Source: source, ID: id}
	s := key.Storage()
	require.Equal(t, s, key.Storage())

	hash := sha256.New()
	for _, part := range []string{consumer, source, id} {
		require.NoError(t, binary.Write(hash, binary.BigEndian, uint32(len(part))))
		hash.Write([]byte(part))
	}
	sum := hash.Sum(nil)

	inID, timed := inbox.IDTime(id)
	if timed {
		requireTimed(t, sum, inID, s)
		require.Equal(t, s, key.StorageAt(time.UnixMilli(ms)))
	} else {
		require.Zero(t, s[0])
		require.Equal(t, sum[1:16], s[1:])
		if at := time.UnixMilli(ms); at.UTC().Year() >= 2010 && at.UTC().Year() < 2100 {
			requireTimed(t, sum, at, key.StorageAt(at))
		} else {
			require.Equal(t, s, key.StorageAt(at))
		}
	}

	// One byte more, anywhere, or one byte moved to the next part, is another key.
	others := []inbox.Key{
		{Consumer: consumer + "x", Source: source, ID: id},
		{Consumer: consumer, Source: source + "x", ID: id},
		{Consumer: consumer, Source: source, ID: id + "x"},
	}
	if n := len(consumer); n > 0 {
		others = append(others, inbox.Key{Consumer: consumer[:n-1], Source: consumer[n-1:] + source, ID: id})
	}
	if n := len(source); n > 0 {
		others = append(others, inbox.Key{Consumer: consumer, Source: source[:n-1], ID: source[n-1:] + id})
	}
	for _, other := range others {
		require.NotEqual(t, s, other.Storage(), "%#v", other)
	}
	require.NotPanics(t, func() { _ = key.String() })
}

func requireTimed(t *testing.T, sum []byte, at time.Time, s inbox.StorageKey) {
	t.Helper()
	require.Equal(t, fmt.Sprintf("%012x", at.UnixMilli()), fmt.Sprintf("%x", s[:6]))
	require.Equal(t, sum[6:16], s[6:])
	require.GreaterOrEqual(t, s[0], byte(1))
	require.LessOrEqual(t, s[0], byte(3))
}

func TestKeyString(t *testing.T) {
	t.Parallel()
	require.Equal(t, "charge/42", inbox.Key{Consumer: "charge", ID: "42"}.String())
	require.Equal(t, "billing/charge/shop/42", inbox.Key{Consumer: "billing/charge", Source: "shop", ID: "42"}.String())
	require.Equal(t, `c/a\x00\n\xff\"\\\U0001f600`, inbox.Key{Consumer: "c", ID: "a\x00\n\xff\"\\😀"}.String(),
		"nothing that forges or breaks a log line")

	long := inbox.Key{Consumer: "c", Source: strings.Repeat("s", 121), ID: strings.Repeat("i", 120)}.String()
	require.Equal(t, "c/"+strings.Repeat("s", 120)+".../"+strings.Repeat("i", 120), long)
	most := strings.Repeat("\xff", inbox.MaxIDLength)
	require.Less(t, len(inbox.Key{Consumer: most, Source: most, ID: most}.String()), 2048)
}

func uuidv7At(ms int64) string {
	return fmt.Sprintf("%08x-%04x-7abc-8def-0123456789ab", ms>>16, ms&0xffff)
}
