package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/storetest"
)

// setting is one way to run the store in which the whole contract holds.
type setting struct {
	name string
	env  func(t *testing.T) storetest.Env
}

// TestConformance runs the suite behind a pooler of the oldest server, and with partitions
// under the four roles on the newest. The matrix has every version as it comes, and every
// setting by itself.
//
// Promises: L
func TestConformance(t *testing.T) {
	t.Parallel()
	poolers := testserver.PgBouncerVersions()
	settings := []setting{underRoles("roles-partitions", true), behindPooler(t, poolers[0], "15")}
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		settings = append(settings, underRoles("roles", false), withPartitions("15"), withPartitions("18"), withoutNames())
		for _, version := range testserver.PostgresVersions() {
			settings = append(settings, asItComes(version))
		}
		for _, version := range poolers {
			settings = append(settings, behindPooler(t, version, "18"))
		}
	}
	for i, s := range settings {
		t.Run(s.name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) storetest.Env {
				t.Parallel()
				if i == 0 {
					return listedEnv{s.env(t)}
				}
				return s.env(t)
			})
		})
	}
}

// listedEnv is an environment whose run is in docs/conformance.md.
type listedEnv struct{ storetest.Env }

func (e listedEnv) Features() storetest.Features {
	f := e.Env.Features()
	f.Database = "PostgreSQL 18, with partitions, under roles"
	return f
}

func asItComes(version string) setting {
	return setting{"pg" + version, func(t *testing.T) storetest.Env { return env{fresh(t, version, 4)} }}
}

func withPartitions(version string) setting {
	return setting{"partitions-pg" + version, func(t *testing.T) storetest.Env { return env{partitioned(t, version, 4)} }}
}

// underRoles works with the rights of the relay's role, the writer's and the admin's.
func underRoles(name string, partitions bool) setting {
	var logins map[string]string
	o := original{version: "18", kind: fmt.Sprintf("roles_%t", partitions), lanes: 4, fill: func(d *db) (err error) {
		if err = d.migrate(partitions); err == nil {
			logins, err = d.makeRoles()
		}
		return err
	}}
	return setting{name, func(t *testing.T) storetest.Env {
		e := roleEnv{env{o.copy(t)}, map[string]*pgxpool.Pool{}}
		for suffix, login := range logins {
			e.pools[suffix] = e.as(login)
		}
		return e
	}}
}

type roleEnv struct {
	env
	pools map[string]*pgxpool.Pool
}

func (e roleEnv) Store() store.Store  { return e.storeAs(e.pools["relay"]) }
func (e roleEnv) Office() *ops.Office { return e.storeAs(e.pools["admin"]).Office() }
func (e roleEnv) Features() storetest.Features {
	f := e.env.Features()
	f.Keeper = e.storeAs(e.pools["relay"]).Office
	return f
}

func (e roleEnv) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := e.pools["writer"].Begin(ctx)
	return &writer{Tx: tx, db: e.db}, err
}

// withoutNames prepares nothing under a name, as the store works behind a pooler.
func withoutNames() setting {
	return setting{"without-names", func(t *testing.T) storetest.Env {
		d := fresh(t, "18", 4)
		cfg := d.pool.Config()
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return env{&db{T: d.T, pool: pool, schema: d.schema, lanes: d.lanes}}
	}}
}

// behindPooler has two PgBouncers in transaction mode, in turns. The cases behind one
// share three sessions of the server.
func behindPooler(t *testing.T, version, server string) setting {
	t.Helper()
	var urls [2]string
	for i := range urls {
		urls[i] = testserver.StartPgBouncer(t, version, "transaction", testserver.SharedPostgres(t, server)).DatabaseURL("postgres")
	}
	var turn atomic.Int64
	return setting{"pgbouncer-" + version + "-pg" + server, func(t *testing.T) storetest.Env {
		d := empty(t, server, 4)
		if err := d.migrate(false); err != nil {
			t.Fatal(err)
		}
		return &bouncerEnv{env{d}, behindBouncer(t, urls[turn.Add(1)%2])}
	}}
}

// bouncerEnv writes directly, and reads and acts through the pooler.
type bouncerEnv struct {
	env
	pool *pgxpool.Pool
}

func (e *bouncerEnv) Store() store.Store  { return e.storeAs(e.pool) }
func (e *bouncerEnv) Office() *ops.Office { return e.storeAs(e.pool).Office() }
