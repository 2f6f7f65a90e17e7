package inboxhttp_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"time"

	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/inbox/inboxhttp"
)

// db is the application's database.
var db *sql.DB

// An operation that has one effect and one answer per Idempotency-Key.
func ExampleNew() {
	in := inbox.New(dialect.Postgres, "orders api", &inbox.Options{Horizon: 24 * time.Hour})

	place := func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		var id int64
		err := tx.QueryRowContext(r.Context(), "INSERT INTO orders (item) VALUES ($1) RETURNING id", r.FormValue("item")).Scan(&id)
		if err != nil {
			return err // rolled back and answered with 500; the key may be used again
		}
		w.WriteHeader(http.StatusCreated)
		_, err = fmt.Fprintf(w, "order %d\n", id)
		return err
	}
	account := func(r *http.Request) string { return r.Header.Get("X-Account") } // from your authentication

	mux := http.NewServeMux()
	mux.Handle("POST /orders", inboxhttp.New(in, consumer.SQL(db, dialect.Postgres), account, place, &inboxhttp.Options{Required: true}))
}
