package pgstore_test

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// TestOpen: the connection string decides over the options, and Close ends the pool
// that Open made.
func TestOpen(t *testing.T) {
	if _, err := pgstore.Open("postgres://u:hunter2%zz@h/db", nil); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a string that cannot be read: %v", err)
	}
	d, url := empty(t, "18", 4), testserver.SharedPostgres(t, "18").URL
	more := "?"
	if strings.Contains(url, "?") {
		more = "&"
	}
	opts := &pgstore.Options{Schema: d.schema, Lanes: d.lanes, Durable: "never"}
	for params, ok := range map[string]bool{"durable=flush": true, "durable=no": false, "durable=flush&wake=no": false, "application_name=x": false} {
		st, err := pgstore.Open(url+more+params, opts)
		if err != nil {
			t.Fatal(err)
		}
		_, err = st.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{})
		if ok && err != nil {
			t.Errorf("%s: %v", params, err)
		} else if !ok {
			wantIs(t, err, store.ErrUnusable)
		}
		st.Close()
		if _, err := st.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err == nil {
			t.Errorf("%s: a closed store works", params)
		}
	}
}
