// Package dialect holds the SQL of the inbox: one file per database with its statements, and its numbered migrations.
package dialect

import (
	"regexp"
	"strings"
)

// Statements are the SQL of one database for one inbox, the table names filled in.
type Statements struct {
	// Claim inserts the memory row of a new message: one row inserted means claimed. Its arguments are key,
	// fingerprint, message time, consumer, source, message id, topic, horizon scope and horizon id; PostgreSQL's has the
	// number of the advisory lock as the tenth.
	Claim Statement
	// LockFirst goes before the claim, with its arguments, where the claim itself would wait for the holder of the key.
	LockFirst Statement
	// Probe tells outside any transaction whether a claim is worth while (key, number of the advisory lock): one row, one
	// boolean. Empty where nothing can tell.
	Probe Statement
	// Check tells before COMMIT whether the transaction of the claim is still open and still holds the row (key): one
	// row, two booleans. Empty where the driver shows it.
	Check Statement
	// Lookup tells what stands under a key. Its arguments are key, message time and horizon id; its one row:
	// found, processed, late, fingerprint, consumer, source, message id, recorded handler and messages.
	Lookup Statement
	// Find is Lookup for a key alone, with the same row, or none. It goes first where it is much cheaper; else empty.
	Find Statement
	// Late tells whether the message's time is not after its horizon (horizon id, message time): one row, one boolean. It
	// goes with Find, behind it; else empty.
	Late Statement
	// TryLock takes the advisory lock of a key until its statement ends (number): one row, one boolean. Else empty.
	TryLock Statement
	// Record keeps what a handler returned (key, handler, messages).
	Record Statement
	// Forget deletes records. On PostgreSQL its argument is an array of keys, elsewhere one key.
	Forget Statement
	// ClaimOperation inserts the row of a new operation (key, fingerprint, scope, operation id, number of the advisory
	// lock): one row inserted means claimed. LockOperationFirst is its LockFirst, ProbeOperation its Probe.
	ClaimOperation, LockOperationFirst, ProbeOperation Statement
	// FindOperation gives fingerprint, scope, operation id, result and messages of an operation (key), or no row.
	FindOperation Statement
	// KeepResult writes the result of an operation (key, result, messages); DropOperation deletes it (key).
	KeepResult, DropOperation Statement
	// CheckOperation is Check for an operation without a message.
	CheckOperation Statement
	// PutScheme registers a consumer's key scheme unless it has one (id, consumer, scheme); GetScheme reads it (id).
	PutScheme, GetScheme Statement
}

// Statement is SQL and the order in which it wants its arguments.
type Statement struct {
	SQL   string
	order []int // nil: as they come
}

// Args puts the arguments into the statement's order.
func (s Statement) Args(args ...any) []any {
	if s.order == nil {
		return args
	}
	ordered := make([]any, len(s.order))
	for i, n := range s.order {
		ordered[i] = args[n]
	}
	return ordered
}

var numbered = regexp.MustCompile(`\?\d`)

// positional turns ?1, ?2, … into the plain ? of MySQL, whose arguments come in the order of the text.
func positional(sql string) Statement {
	s := Statement{order: []int{}}
	s.SQL = numbered.ReplaceAllStringFunc(sql, func(mark string) string {
		s.order = append(s.order, int(mark[1]-'1'))
		return "?"
	})
	return s
}

// templates are Statements before the tables are filled in.
type templates struct {
	Claim, LockFirst, Probe, Check, Lookup, Find, Late, TryLock, Record, Forget, PutScheme, GetScheme string

	ClaimOperation, LockOperationFirst, ProbeOperation, FindOperation, KeepResult, DropOperation, CheckOperation string
}

// Names are the tables of one inbox, quoted and qualified.
type Names struct {
	Inbox, Produced, Operations, Queue, Steps, Lanes, Horizons, Consumers, Migrations string
	QueueDue, QueueLane, QueueKey, OperationOwner                                     string // indexes, where they need names
}

var namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)

// NameRule is what ValidName asks for, in words.
const NameRule = "must be a letter or underscore and up to 39 more letters, digits or underscores"

// ValidName tells whether a schema or table prefix is one that every database takes, with room for the tables' suffixes.
func ValidName(name string) bool { return namePattern.MatchString(name) }

// suffixes are those of the tables, to be put behind the prefix.
var suffixes = [...]string{"", "_produced", "_operations", "_queue", "_steps", "_lanes", "_consumers", "_horizons", "_migrations"}

// NewNames gives the tables for a prefix in a schema; an empty schema leaves them unqualified.
func NewNames(schema, prefix string, quote func(string) string) Names {
	name := func(suffix string) string { return qualified(schema, prefix+suffix, quote) }
	return Names{
		Inbox:      name(""),
		Produced:   name("_produced"),
		Operations: name("_operations"),
		Queue:      name("_queue"),
		Steps:      name("_steps"),
		Lanes:      name("_lanes"),

		QueueDue: name("_queue_due"), QueueLane: name("_queue_lane"), QueueKey: name("_queue_key"),
		OperationOwner: name("_operations_owner"),

		Consumers:  name("_consumers"),
		Horizons:   name("_horizons"),
		Migrations: name("_migrations"),
	}
}

func qualified(schema, table string, quote func(string) string) string {
	if schema == "" {
		return quote(table)
	}
	return quote(schema) + "." + quote(table)
}

// fill puts the tables' names into SQL written with {inbox}, {produced}, {operations}, {queue}, {steps}, {lanes}, {horizons}, {consumers}, {migrations}.
func (n Names) fill(sql string) string {
	return strings.NewReplacer(
		"{inbox}", n.Inbox, "{produced}", n.Produced, "{operations}", n.Operations, "{queue}", n.Queue, "{steps}", n.Steps, "{lanes}", n.Lanes,
		"{queue_due}", n.QueueDue, "{queue_lane}", n.QueueLane, "{queue_key}", n.QueueKey, "{operations_owner}", n.OperationOwner,
		"{horizons}", n.Horizons, "{consumers}", n.Consumers, "{migrations}", n.Migrations,
	).Replace(strings.TrimSpace(sql))
}

// Dialect is one database's SQL.
type Dialect struct {
	Name string
	// Quote quotes an identifier that ValidName accepted.
	Quote func(string) string
	// Migrations are the numbered steps, in order from 1.
	Migrations []Migration

	templates  templates
	queue      queueTemplates
	positional bool // the database knows only ?
	schema     schemaStatements
}

// Statements gives the SQL for the tables of n.
func (d Dialect) Statements(n Names) Statements {
	statement := func(sql string) Statement {
		if d.positional {
			return positional(n.fill(sql))
		}
		return Statement{SQL: n.fill(sql)}
	}
	t := d.templates
	return Statements{
		Claim: statement(t.Claim), LockFirst: statement(t.LockFirst), Probe: statement(t.Probe),
		Check: statement(t.Check), Lookup: statement(t.Lookup), Find: statement(t.Find),
		Late: statement(t.Late), TryLock: statement(t.TryLock),
		Record: statement(t.Record), Forget: statement(t.Forget),
		ClaimOperation: statement(t.ClaimOperation), LockOperationFirst: statement(t.LockOperationFirst),
		ProbeOperation: statement(t.ProbeOperation), FindOperation: statement(t.FindOperation),
		KeepResult: statement(t.KeepResult), DropOperation: statement(t.DropOperation), CheckOperation: statement(t.CheckOperation),
		PutScheme: statement(t.PutScheme), GetScheme: statement(t.GetScheme),
	}
}

// doubleQuote quotes an identifier the standard's way.
func doubleQuote(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// literal quotes a string for SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
