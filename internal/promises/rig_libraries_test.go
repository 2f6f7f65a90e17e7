package promises

import (
	_ "github.com/jmoiron/sqlx" // used by the snippets of TestOnlyTransactionsCompile
	_ "github.com/uptrace/bun"
)
