// Package wrappers proves that pgxinbox.OpenDB and pgxinbox.Connector do what they promise under the libraries that
// people put on database/sql: otelsql, sqlx, gorm. It is a module of its own, so that nobody else needs them.
package wrappers
