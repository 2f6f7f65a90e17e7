// Command readmodel keeps a search table of products up to date, in one process
// on one SQLite file. A message carries the whole product, so only the newest
// counts, and an old one that comes late must not overwrite it: latest.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/examples/internal/embedded"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
)

// Product is the payload: the state after a change.
type Product struct {
	SKU   string
	Title string
	Price int // in cents
}

const tables = `
CREATE TABLE IF NOT EXISTS product (sku TEXT PRIMARY KEY, title TEXT, price INTEGER, version INTEGER);
CREATE TABLE IF NOT EXISTS search (sku TEXT PRIMARY KEY, line TEXT)`

// save changes a product and says so. The row counts its own versions.
func save(ctx context.Context, changes *outbox.Outbox, tx *sql.Tx, p Product) error {
	var version int64
	err := tx.QueryRowContext(ctx, `INSERT INTO product VALUES ($1, $2, $3, 1) ON CONFLICT (sku)
		DO UPDATE SET title = excluded.title, price = excluded.price, version = version + 1 RETURNING version`,
		p.SKU, p.Title, p.Price).Scan(&version)
	if err != nil {
		return err
	}
	m := postrider.JSON("products", p.SKU, "product.saved", p)
	m.Version = version
	return changes.Enqueue(ctx, tx, m)
}

// readModel keeps the search table in db as src says.
func readModel(src broker.Source, db *sql.DB) *consumer.Consumer[*sql.Tx] {
	c := consumer.New(src, consumer.SQL(db, dialect.SQLite), &consumer.Options{
		Name:  "search",
		Order: func(string) inbox.Order { return inbox.Latest },
	})
	consumer.Handle(c, "product.saved", func(ctx context.Context, tx *sql.Tx, p Product) error {
		line := fmt.Sprintf("%s, %d.%02d", p.Title, p.Price/100, p.Price%100)
		_, err := tx.ExecContext(ctx, "INSERT INTO search VALUES ($1, $2) ON CONFLICT (sku) DO UPDATE SET line = excluded.line", p.SKU, line)
		return err
	})
	return c
}

func main() {
	if err := run(context.Background(), os.Stdout, "readmodel.db"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, file string) error {
	app, err := embedded.Open(ctx, file, tables)
	if err != nil {
		return err
	}
	defer app.DB.Close()
	saved := []Product{{"b-1", "Old title", 1000}, {"b-2", "Second book", 2050}, {"b-1", "New title", 900}}
	err = app.Do(ctx, func(tx *sql.Tx) error {
		for _, p := range saved {
			if err := save(ctx, app.Outbox, tx, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	search := readModel(app.Bus.Source("search", "products"), app.DB)
	if err := app.Handle(ctx, search, len(saved)); err != nil {
		return err
	}
	rows, err := app.DB.QueryContext(ctx, "SELECT sku, line FROM search ORDER BY sku")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var sku, line string
		if err := rows.Scan(&sku, &line); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", sku, line)
	}
	return rows.Err()
}
