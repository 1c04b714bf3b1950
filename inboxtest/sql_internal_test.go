package inboxtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsCommit(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"":                                      false,
		"commit":                                true,
		" Commit;":                              true,
		"COMMIT WORK AND CHAIN":                 true,
		"end":                                   true,
		"END TRANSACTION":                       true,
		"COMMIT PREPARED 'x'":                   false,
		"commit /* a */ prepared 'x'":           false,
		"PREPARE TRANSACTION 'x'":               false,
		"rollback":                              false,
		"committed":                             false,
		"commit_log":                            false,
		"-- note\n/* a /* b */ ; */ commit":     true,
		"-- commit":                             false,
		"-- x;\ncommit":                         true,
		"/* commit":                             false,
		"begin; insert into a values (1); end":  true,
		";;commit":                              true,
		"(commit)":                              false,
		"select 'a; commit'":                    false,
		"select 'it''s; commit'":                false,
		`select "a; commit"`:                    false,
		`select E'\'; commit; select \''`:       false,
		`select E'\''; commit`:                  true,
		`select 'a\'; commit`:                   true,
		"select e, 'x'; commit":                 true,
		"do $$ begin; commit; end $$":           false,
		"do $a1$ x $$; commit; $a1$; commit":    true,
		"do $$ x; commit":                       false,
		"select $1; commit":                     true,
		"select a$b; commit; select a$b":        true,
		"update t set name = 'x' where id = $1": false,
		"select case when true then 1 end":      false,
		"select 1 - 2; commit":                  true,
		"select 4 / 2; select 1":                false,
	} {
		require.Equal(t, want, isCommit(sql), "%s", sql)
	}
}

func FuzzIsCommit(f *testing.F) {
	f.Add("select E'\\")
	f.Add("$")
	f.Add("$$")
	f.Add("/*")
	f.Fuzz(func(_ *testing.T, sql string) {
		isCommit(sql)
	})
}
