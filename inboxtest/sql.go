package inboxtest

import "strings"

// isCommit tells whether a query, of one statement or several, contains a COMMIT that ends a
// transaction; COMMIT PREPARED ends one of another kind.
func isCommit(sql string) bool {
	for len(sql) > 0 {
		var words []string
		words, sql = firstWords(sql)
		switch {
		case len(words) == 0:
		case words[0] == "END":
			return true
		case words[0] == "COMMIT" && (len(words) == 1 || words[1] != "PREPARED"):
			return true
		}
	}
	return false
}

// firstWords returns up to two words, in upper case, that the first statement of a query begins
// with, and the query behind that statement.
func firstWords(sql string) (words []string, rest string) {
	begin := true // nothing but words and white space so far
	for len(sql) > 0 {
		if sql[0] == ';' {
			return words, sql[1:]
		}
		n := tokenLen(sql)
		token := sql[:n]
		sql = sql[n:]
		switch {
		case isSpace(token[0]), strings.HasPrefix(token, "--"), strings.HasPrefix(token, "/*"):
		case begin && len(words) < 2 && isWord(token[0]):
			words = append(words, strings.ToUpper(token))
		default:
			begin = false
		}
	}
	return words, ""
}

// tokenLen returns the length of the token that sql begins with. It knows the tokens that can
// hide a semicolon: quoted strings and names, dollar quotes and comments.
func tokenLen(sql string) int {
	switch c := sql[0]; {
	case strings.HasPrefix(sql, "--"):
		return through(sql, 2, "\n")
	case strings.HasPrefix(sql, "/*"):
		return commentLen(sql)
	case c == '\'' || c == '"':
		return through(sql, 1, string(c))
	case (c == 'e' || c == 'E') && strings.HasPrefix(sql[1:], "'"):
		return escapeStringLen(sql)
	case c == '$':
		tag := 1
		for tag < len(sql) && isWord(sql[tag]) {
			tag++
		}
		if tag == len(sql) || sql[tag] != '$' {
			return tag // $1
		}
		return through(sql, tag+1, sql[:tag+1])
	case isWord(c):
		n := 1
		for n < len(sql) && (isWord(sql[n]) || sql[n] == '$') {
			n++
		}
		return n
	default:
		return 1
	}
}

// through returns where sql goes on behind the first end that follows the first from bytes.
func through(sql string, from int, end string) int {
	if i := strings.Index(sql[from:], end); i >= 0 {
		return from + i + len(end)
	}
	return len(sql)
}

// commentLen measures a comment, in which comments nest.
func commentLen(sql string) int {
	depth, n := 1, 2
	for n < len(sql) && depth > 0 {
		switch {
		case strings.HasPrefix(sql[n:], "/*"):
			depth, n = depth+1, n+2
		case strings.HasPrefix(sql[n:], "*/"):
			depth, n = depth-1, n+2
		default:
			n++
		}
	}
	return n
}

// escapeStringLen measures a string E'…', in which a backslash hides the next byte.
func escapeStringLen(sql string) int {
	for n := 2; n < len(sql); n++ {
		switch sql[n] {
		case '\\':
			n++
		case '\'':
			return n + 1
		}
	}
	return len(sql)
}

func isSpace(c byte) bool {
	return strings.IndexByte(" \t\n\r\f\v", c) >= 0
}

func isWord(c byte) bool {
	return c == '_' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
