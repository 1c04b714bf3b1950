package dialect

import (
	"fmt"
	"strconv"
	"strings"
)

// schemaStatements are the SQL around migrations, with {schema}, {quotedSchema}, {table} (the plain name), {quotedTable} and
// {lock} to fill in besides the tables. An empty one is not needed on the database.
type schemaStatements struct {
	begin, lock, unlock, hasSchema, createSchema, hasTable, versionsTable string
}

// Schema is the SQL that manages one inbox's tables, everything filled in.
type Schema struct {
	Begin         string // begins the transaction of a migration; empty where DDL knows none
	Lock          string // lets one migration pass at a time, until its transaction ends; may be empty
	Unlock        string // ends a lock that does not end with the transaction
	HasSchema     string // counts the schema; empty where there is none to create
	CreateSchema  string
	VersionsTable string // creates the table of versions if it is missing
	Versions      string // reads the applied versions in order

	Tables Names

	dialect        Dialect
	schema, prefix string
}

// NewSchema gives the schema SQL for the tables of prefix in schema, which may be empty; lock is the number of the lock.
func (d Dialect) NewSchema(schema, prefix string, lock int64) Schema {
	names := NewNames(schema, prefix, d.Quote)
	fill := func(sql string) string {
		return names.fill(strings.NewReplacer(
			"{schema}", literal(schema), "{quotedSchema}", d.Quote(schema), "{lock}", strconv.FormatInt(lock, 10),
		).Replace(sql))
	}
	s := Schema{
		Begin:         d.schema.begin,
		Lock:          fill(d.schema.lock),
		Unlock:        fill(d.schema.unlock),
		VersionsTable: fill(d.schema.versionsTable),
		Versions:      fill("SELECT version FROM {migrations} ORDER BY version"),
		Tables:        names,
		dialect:       d,
		schema:        schema,
		prefix:        prefix,
	}
	if schema != "" && d.schema.hasSchema != "" {
		s.HasSchema, s.CreateSchema = fill(d.schema.hasSchema), fill(d.schema.createSchema)
	}
	return s
}

// HasTable is a statement that counts one table.
type HasTable struct{ Name, Count string }

// HasTables gives a statement for every table of the inbox.
func (s Schema) HasTables() []HasTable {
	var queries []HasTable
	for _, suffix := range suffixes {
		quoted := qualified(s.schema, s.prefix+suffix, s.dialect.Quote)
		count := strings.NewReplacer(
			"{schema}", literal(s.schema), "{table}", literal(s.prefix+suffix), "{quotedTable}", literal(quoted),
		).Replace(s.dialect.schema.hasTable)
		queries = append(queries, HasTable{Name: quoted, Count: count})
	}
	return queries
}

// Latest is the version that the statements of this program need.
func (s Schema) Latest() int { return len(s.dialect.Migrations) }

// Up gives the statements that lead from version-1 to version, the note of it included.
func (s Schema) Up(version int) []string {
	m := s.dialect.Migrations[version-1]
	note := fmt.Sprintf("INSERT INTO {migrations} (version, name) VALUES (%d, %s)", m.Version, literal(m.Name))
	return s.fillAll(append(append([]string(nil), m.Up...), note))
}

// Down gives the statements that lead from version to version-1.
func (s Schema) Down(version int) []string {
	m := s.dialect.Migrations[version-1]
	note := fmt.Sprintf("DELETE FROM {migrations} WHERE version = %d", m.Version)
	return s.fillAll(append(append([]string(nil), m.Down...), note))
}

// DropVersions drops the table of versions, after the last Down.
func (s Schema) DropVersions() string { return s.Tables.fill("DROP TABLE {migrations}") }

func (s Schema) fillAll(statements []string) []string {
	for i, sql := range statements {
		statements[i] = s.Tables.fill(sql)
	}
	return statements
}
