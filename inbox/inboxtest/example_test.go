package inboxtest_test

import (
	"testing"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox/inboxtest"
)

// newEnv opens a database with empty inbox tables and fills in the functions of Env.
func newEnv(t *testing.T) *inboxtest.Env {
	t.Helper()
	return &inboxtest.Env{Dialect: dialect.SQLite}
}

// TestInbox is what the tests of a database's adapter have.
func ExampleRun() {
	TestInbox := func(t *testing.T) {
		inboxtest.Run(t, newEnv)
	}
	_ = TestInbox
}
