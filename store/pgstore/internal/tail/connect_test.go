package tail_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
)

// The session that reads the log connects as the pool does: encrypted, to a server whose certificate
// it has checked, and with the password of the moment.
//
// Promises: C, S
func TestTheLogThroughTLSWithARotatedPassword(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		t.Parallel()
		b := serves(t, version)
		ca, err := testserver.NewCA(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		b.exec(`ALTER ROLE app REPLICATION PASSWORD 'first'`)
		if err := b.server.UseTLS(t.Context(), ca, "hostssl all app 127.0.0.1/32 scram-sha-256", "host all app all reject"); err != nil {
			t.Fatal(err)
		}
		cfg, err := pgxpool.ParseConfig(fmt.Sprintf("postgres://app@127.0.0.1:%d/postgres?sslmode=verify-full&sslrootcert=%s", b.server.Port, ca.File))
		if err != nil {
			t.Fatal(err)
		}
		var password atomic.Value
		password.Store("first")
		cfg.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
			cc.Password = password.Load().(string)
			return nil
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		b.waitOn(pool)
		encrypted := func() {
			t.Helper()
			b.on()
			b.rung()
			if n := b.count(`SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_replication r USING (pid) WHERE s.ssl AND r.application_name = 'postrider tail'`); n != 1 {
				t.Errorf("%d encrypted sessions read the log", n)
			}
		}
		encrypted()
		b.exec(`ALTER ROLE app PASSWORD 'second'`)
		b.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots`)
		if w := b.off("password"); strings.Contains(w.Why, "first") {
			t.Errorf("the reason has the password: %s", w.Why)
		}
		password.Store("second")
		encrypted()
	})
}
