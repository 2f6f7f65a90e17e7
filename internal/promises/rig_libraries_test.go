package promises

import (
	_ "github.com/jmoiron/sqlx" // used by the snippets of TestWhatIsATransaction
	_ "github.com/uptrace/bun"
)
