package engine

import "strings"

const hexDigits = "0123456789abcdef"

// EncodeText makes any bytes readable and storable in every text column: printable ASCII stays, every other byte and
// the backslash become \xNN. No two strings encode alike.
func EncodeText(s string) string {
	n := 0
	for i := 0; i < len(s); i++ {
		if mustEscape(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+3*n)
	for i := 0; i < len(s); i++ {
		if c := s[i]; mustEscape(c) {
			b = append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&0xf])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func mustEscape(c byte) bool { return c < ' ' || c > '~' || c == '\\' }

// DecodeText gives the bytes that EncodeText has made readable.
func DecodeText(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+3 >= len(s) {
			b = append(b, s[i])
			continue
		}
		b = append(b, digit(s[i+2])<<4|digit(s[i+3]))
		i += 3
	}
	return string(b)
}

func digit(c byte) byte { return byte(strings.IndexByte(hexDigits, c)) }
