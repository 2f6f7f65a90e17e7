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
	// MySQL is MySQL 8.0.16 and newer and MariaDB 10.11 and newer, through any driver
	// of database/sql.
	MySQL
)

// String returns "postgres", "sqlite" or "mysql".
func (d Dialect) String() string {
	switch d {
	case SQLite:
		return "sqlite"
	case MySQL:
		return "mysql"
	default:
		return "postgres"
	}
}
