package early

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testserver"
)

// The lane of a row of the log is that of the table: the hash is the server's, on every version
// and for every length.
//
// Promises: O
func TestHashIsTheServers(t *testing.T) {
	for text, want := range map[string]int64{"k": -6709199152315939027, "order-4711": -8114333951249933253} {
		if got := int64(hash([]byte(text))); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	for _, version := range testserver.PostgresVersions() {
		t.Run("pg"+version, func(t *testing.T) {
			conn, err := pgx.Connect(t.Context(), testserver.SharedPostgres(t, version).Database(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			for n := range 80 {
				key := strings.Repeat("aß0", n)[:n]
				key = strings.ToValidUTF8(key, "?")
				id := fmt.Sprintf("018f6b1e-0000-7000-8000-%012x", n*n*7919)
				var text, uuid int64
				var raw []byte
				if err := conn.QueryRow(t.Context(), `SELECT hashtextextended($1, 0), uuid_hash_extended($2::text::uuid, 0), uuid_send($2::text::uuid)`, key, id).
					Scan(&text, &uuid, &raw); err != nil {
					t.Fatal(err)
				}
				if got := int64(hash([]byte(key))); got != text {
					t.Errorf("%q: %d, want %d", key, got, text)
				}
				if got := int64(hash(raw)); got != uuid {
					t.Errorf("%s: %d, want %d", id, got, uuid)
				}
			}
		})
	}
}
