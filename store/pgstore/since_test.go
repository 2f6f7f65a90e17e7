package pgstore

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testserver"
)

// The ids of rows go round in 32 bits; an instance that lives for years must not
// lose what it holds.
func TestSinceOutlivesTheCircleOfIDs(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	conn, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	const circle = 1 << 32
	for _, tc := range []struct {
		row, joined, next int64 // whole ids
		want              bool
	}{
		{1000, 1000, 1001, true},
		{999, 1000, 1001, false},
		{1005, 1000, 1001, true}, // of the statement's own transaction
		{circle + 5, circle - 5, circle + 6, true},
		{circle - 6, circle - 5, circle + 6, false},
		{circle + 2_999_999_990, circle + 10, circle + 3_000_000_000, true}, // long ago
		{3*circle + 7, 5, 3*circle + 8, true},
		{circle + 4_000_000, circle + 10, circle + 2_100_000_000, true}, // idle for two thousand million ids
	} {
		sql := `SELECT ` + since(fmt.Sprintf("'%d'::xid", tc.row%circle), fmt.Sprintf("'%d'::xid8", tc.joined), fmt.Sprintf("'%d'::xid8", tc.next))
		var got bool
		if err := conn.QueryRow(t.Context(), sql).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != tc.want {
			t.Errorf("row %d, joined %d, next %d: %v", tc.row, tc.joined, tc.next, got)
		}
	}
}
