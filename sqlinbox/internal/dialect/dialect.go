// Package dialect holds the SQL of the inbox: one file per database with its statements, and its numbered migrations.
package dialect

import (
	"regexp"
	"strings"
)

// Statements are the SQL of one database for one inbox, the table names filled in.
type Statements struct {
	// Claim inserts the memory row of a new message: one row inserted means claimed. Its arguments are key,
	// fingerprint, message time, consumer, source, message id, topic and horizon scope; PostgreSQL's has the number of
	// the advisory lock as the ninth.
	Claim string
	// Lookup tells what stands under a key. Its arguments are key, message time, consumer, source and horizon scope;
	// its one row: found, processed, late, fingerprint, consumer, source, message id.
	Lookup string
	// PutScheme registers a consumer's key scheme unless it has one (consumer, scheme); GetScheme reads it (consumer).
	PutScheme, GetScheme string
}

// Names are the tables of one inbox, quoted and qualified.
type Names struct {
	Inbox, Horizons, Consumers, Migrations string
}

var namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)

// NameRule is what ValidName asks for, in words.
const NameRule = "must be a letter or underscore and up to 39 more letters, digits or underscores"

// ValidName tells whether a schema or table prefix is one that every database takes, with room for the tables' suffixes.
func ValidName(name string) bool { return namePattern.MatchString(name) }

// NewNames gives the tables for a prefix in a schema; an empty schema leaves them unqualified.
func NewNames(schema, prefix string, quote func(string) string) Names {
	qualified := func(suffix string) string {
		name := quote(prefix + suffix)
		if schema != "" {
			name = quote(schema) + "." + name
		}
		return name
	}
	return Names{
		Inbox:      qualified(""),
		Horizons:   qualified("_horizons"),
		Consumers:  qualified("_consumers"),
		Migrations: qualified("_migrations"),
	}
}

// fill puts the tables' names into SQL written with {inbox}, {horizons}, {consumers}, {migrations}.
func (n Names) fill(sql string) string {
	return strings.NewReplacer(
		"{inbox}", n.Inbox, "{horizons}", n.Horizons, "{consumers}", n.Consumers, "{migrations}", n.Migrations,
	).Replace(strings.TrimSpace(sql))
}

// Dialect is one database's SQL.
type Dialect struct {
	Name string
	// Quote quotes an identifier that ValidName accepted.
	Quote func(string) string
	// Migrations are the numbered steps, in order from 1.
	Migrations []Migration

	statements Statements
	schema     schemaStatements
}

// Statements gives the SQL for the tables of n.
func (d Dialect) Statements(n Names) Statements {
	return Statements{
		Claim:     n.fill(d.statements.Claim),
		Lookup:    n.fill(d.statements.Lookup),
		PutScheme: n.fill(d.statements.PutScheme),
		GetScheme: n.fill(d.statements.GetScheme),
	}
}

// doubleQuote quotes an identifier the standard's way.
func doubleQuote(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// literal quotes a string for SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
