package engine

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
