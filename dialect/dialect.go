// Package dialect names the kinds of SQL that Postrider writes to a database.
package dialect

// Dialect is the SQL that a database speaks. The zero value is [Postgres].
type Dialect uint8

// The dialects.
const (
	// Postgres is PostgreSQL 15 and newer, through any driver.
	Postgres Dialect = iota
	// SQLite is SQLite 3.35 and newer, through any driver of database/sql.
	SQLite
)

// String returns "postgres" or "sqlite".
func (d Dialect) String() string {
	if d == SQLite {
		return "sqlite"
	}
	return "postgres"
}
