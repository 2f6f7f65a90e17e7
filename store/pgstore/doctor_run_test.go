package pgstore_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// beat sends a heartbeat of the owner, or what else is asked for.
func (o *owner) beat(change func(*store.LeaseRequest)) {
	o.Helper()
	req := store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Minute}
	if change != nil {
		change(&req)
	}
	if _, err := o.store.Lease(o.Context(), req); err != nil {
		o.Fatal(err)
	}
}

// old inserts a message that has waited for an hour.
func old(d *db, _ *owner) {
	d.exec(`INSERT INTO box.outbox (topic, key, type, created_at) VALUES ('t', 'k', 'old', clock_timestamp() - interval '1 hour')`)
}

func relayAilments() []ailment {
	set := func(sql string) func(*db, *owner) { return func(d *db, _ *owner) { d.exec(sql) } }
	beat := func(_ *db, o *owner) { o.beat(nil) }
	drain := func(_ *db, o *owner) { o.drain() }
	discard := func(d *db, o *owner) {
		found, err := d.store("main").Office().Admin.Parked(d.Context(), ops.ParkedQuery{})
		if err != nil || len(found) != 1 {
			d.Fatalf("%d parked, %v", len(found), err)
		}
		if _, err := d.store("main").Office().Admin.Request(d.Context(), store.Act{Kind: store.ActDiscard, Seq: found[0].Seq, Actor: "test"}); err != nil {
			d.Fatal(err)
		}
		o.execute()
	}
	pause := func(resume bool) func(*db, *owner) {
		return func(d *db, _ *owner) {
			if err := d.store("main").Office().Pipes.PausePipe(d.Context(), ops.PausePipe{Name: "main", Resume: resume, Actor: "alice", Reason: "broker moves"}); err != nil {
				d.Fatal(err)
			}
		}
	}
	return []ailment{
		{
			name: "no relay", check: "relays", severity: ops.Critical, word: "has no heartbeat from a relay",
			provoke: func(d *db, o *owner) {
				d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`) // with nothing to send, none is missing
				o.beat(func(r *store.LeaseRequest) { r.Leave = true })
			},
			repair: func(_ *db, o *owner) {
				o.lease()
				o.drain()
			},
		},
		{
			name: "relay in trouble", check: "relays", severity: ops.Critical, word: "sink is down",
			provoke: func(_ *db, o *owner) {
				o.beat(func(r *store.LeaseRequest) { r.Report.Trouble = []string{"sink is down"} })
			}, repair: beat,
		},
		{
			name: "relay with a destination held", check: "relays", severity: ops.Critical, word: "relay a sends nothing to the destination t: UNKNOWN_TOPIC: no such topic",
			provoke: func(_ *db, o *owner) {
				o.beat(func(r *store.LeaseRequest) {
					r.Report.Trouble = []string{"destination t is down"}
					r.Report.Held = []store.Held{{Destination: "t", Since: time.Now(), Code: "UNKNOWN_TOPIC", Error: "no such topic"}}
				})
			}, repair: beat,
		},
		{
			name: "two versions", check: "versions", severity: ops.Warning, word: "v1, v2", provoke: func(_ *db, o *owner) {
				o.beat(func(r *store.LeaseRequest) { r.Report.Version = "v1" })
				o.beat(func(r *store.LeaseRequest) { r.BootID, r.Instance, r.Report.Version, r.Observe = "b", "b", "v2", true })
			},
			repair: func(_ *db, o *owner) { o.beat(func(r *store.LeaseRequest) { r.BootID, r.Leave = "b", true }) },
		},
		{
			name: "clock of a relay", check: "clock", severity: ops.Warning, word: "clock of relay a", repair: beat,
			req: ops.ExamineRequest{Limits: ops.Limits{Skew: time.Minute}}, provoke: set(`UPDATE box.relay SET clock = clock - interval '1 hour'`),
		},
		{
			name: "lanes without an owner", check: "lanes", severity: ops.Critical, word: "have no owner: 0, 1, 2, 3",
			provoke: func(_ *db, o *owner) {
				o.beat(func(r *store.LeaseRequest) {
					r.Observe = true
					for lane, g := range o.grant {
						r.Release = append(r.Release, store.Release{Lane: lane, Epoch: g.Epoch})
					}
				})
			}, repair: func(_ *db, o *owner) { o.lease() },
		},
		{name: "lane that does not move", check: "lanes", severity: ops.Critical, word: "not move", provoke: old, repair: drain},
		{name: "lag", check: "lag", severity: ops.Critical, word: "oldest for 1h", provoke: old, repair: drain},
		{
			name: "dead letter", check: "parked", severity: ops.Warning, word: "is dead (c1), the first: rejected", repair: discard,
			provoke: func(_ *db, o *owner) { o.park("k", "x", store.Dead) },
		},
		{
			name: "message that keeps failing", check: "parked", severity: ops.Warning, word: "being retried", repair: discard,
			provoke: func(d *db, o *owner) {
				o.park("k", "x", store.Retry)
				d.exec(`UPDATE box.parked SET first_failed = clock_timestamp() - interval '1 hour'`)
			},
		},
		{
			name: "act that nobody does", check: "requests", severity: ops.Warning, word: "act waits",
			provoke: set(`INSERT INTO box.request (pipe, lane, seq, kind, created_at) VALUES ('main', 0, 1, 'discard', clock_timestamp() - interval '1 hour')`),
			repair:  func(_ *db, o *owner) { o.execute() },
		},
		{
			name: "rows above the cap", check: "retention", severity: ops.Critical, word: "above the cap",
			provoke: func(d *db, o *owner) {
				d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', 'k' FROM generate_series(1, 5)`)
				d.prune(o.store, ops.PruneRequest{HoldRows: 2})
			},
			repair: func(d *db, o *owner) { o.drain(); d.prune(o.store, ops.PruneRequest{HoldRows: 2}) },
		},
		{ // behind the check of rows above a cap: park counts a message as delivered too
			name: "dead letter of a paused pipe", check: "parked", severity: ops.Warning, word: "is dead (c1), the first: rejected",
			provoke: func(d *db, o *owner) {
				o.park("k", "x", store.Dead)
				pause(false)(d, o)
			},
			repair: func(d *db, o *owner) {
				pause(true)(d, o)
				discard(d, o)
			},
		},
		{
			name: "no retention", check: "retention", severity: ops.Warning, word: "no settled rows have been removed",
			provoke: set(`UPDATE box.retention SET passed_at = clock_timestamp() - interval '2 days'`), repair: func(d *db, o *owner) { d.prune(o.store, ops.PruneRequest{}) },
		},
		{
			name: "books that differ", check: "books", severity: ops.Critical, word: "differ by 7",
			provoke: set(`UPDATE box.book SET difference = 7 WHERE lane = 2`), repair: set(`UPDATE box.book SET difference = 0`),
		},
		{name: "pipe that is paused", check: "pipes", severity: ops.Warning, word: "paused by alice", provoke: pause(false), repair: pause(true)},
		{
			name: "key that is paused", check: "pipes", severity: ops.Warning, word: "0 lanes and 1 key of",
			provoke: set(`INSERT INTO box.hold (pipe, lane, key) VALUES ('main', 1, 'k')`), repair: set(`DELETE FROM box.hold`),
		},
	}
}

// Promises: S
func TestDoctorFindsWhatIsWrongWithTheRelays(t *testing.T) { oneByOne(t, relayAilments()) }

// Transactions, prepared ones, locks and snapshots that stand in the way: each is
// named by its process, and what doctor prints ends it.
//
// Promises: S
func TestDoctorFindsWhatStandsInTheWay(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`)
		cure := func(t *testing.T, check, word string, req ops.ExamineRequest, severity ops.Severity) *ops.Finding {
			t.Helper()
			var first *ops.Finding
			d := &db{T: t, pool: d.pool, schema: d.schema, lanes: d.lanes}
			a := ailment{name: word, check: check, severity: severity, word: word, req: req, provoke: func(d *db, _ *owner) {
				first = d.ill(d.examine(d.store("main"), req, check), word)
			}}
			a.suffer(d, o)
			return first
		}
		now := ops.ExamineRequest{Limits: ops.Limits{Transaction: time.Microsecond}} // critical is ten times as much
		t := d.T
		t.Run("transaction", func(t *testing.T) {
			pid := d.victim(t, "billing", pgx.TxOptions{}, `INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`)
			o.drain()
			f := cure(t, "transactions", fmt.Sprintf("process %d (application \"billing\"", pid), now, ops.Critical)
			if f.Data["in_flight"] != true || f.Data["writes_outbox"] != true {
				t.Errorf("%+v", f.Data)
			}
		})
		t.Run("prepared", func(t *testing.T) {
			tx := d.begin()
			d.put(tx, "prepared")
			d.do(tx, `PREPARE TRANSACTION '`+d.schema+`''s'`)
			d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`)
			o.drain()
			f := cure(t, "prepared", d.schema+"'s", now, ops.Critical)
			if f.Data["in_flight"] != true || f.Data["writes_outbox"] != true {
				t.Errorf("%+v", f.Data)
			}
		})
		t.Run("lock", func(t *testing.T) {
			pid := d.victim(t, "ddl", pgx.TxOptions{}, `LOCK TABLE box.outbox IN ACCESS EXCLUSIVE MODE`)
			done := make(chan error, 1)
			go func() {
				_, err := d.pool.Exec(context.WithoutCancel(t.Context()), d.sql(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`))
				done <- err
			}()
			d.untilCount(`SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'box.outbox'::regclass AND waitstart < clock_timestamp() - interval '2 s'`)
			cure(t, "locks", fmt.Sprintf("process %d", pid), ops.ExamineRequest{}, ops.Critical)
			if err := <-done; err != nil {
				t.Errorf("the writer that had waited: %v", err)
			}
		})
		t.Run("snapshot", func(t *testing.T) {
			pid := d.victim(t, "report", pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, `SELECT count(*) FROM box.outbox`)
			for range 20 {
				d.exec(`SELECT pg_current_xact_id()`)
			}
			cure(t, "horizon", fmt.Sprintf("process %d", pid), ops.ExamineRequest{Limits: ops.Limits{XIDs: 10}}, ops.Warning)
		})
	})
}

// victim runs a statement in a transaction of another session, which stays open.
func (d *db) victim(t *testing.T, application string, opts pgx.TxOptions, sql string) (pid uint32) {
	t.Helper()
	cfg := d.pool.Config()
	cfg.ConnConfig.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // ended by the doctor's advice
	tx, err := conn.BeginTx(t.Context(), opts)
	if err == nil {
		_, err = tx.Exec(t.Context(), d.sql(sql))
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn.PgConn().PID()
}

// What concerns the whole server is examined on one of its own.
func TestDoctorFindsWhatIsWrongWithTheServer(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version, testserver.WithConfig("max_connections = 60"))
		d := &db{T: t, pool: newPool(t, pg.URL), schema: "box", lanes: 4}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
			t.Fatal(err)
		}
		o := d.owner("a")
		d.role("carrier")
		d.role("clerk")
		set := func(sql ...string) func(*db, *owner) {
			return func(d *db, _ *owner) {
				for _, one := range sql {
					d.exec(one)
				}
			}
		}
		const reload = `SELECT pg_reload_conf()`
		relay := ops.ExamineRequest{Role: "carrier"}
		for _, a := range []ailment{
			{name: "no fsync", check: "settings", severity: ops.Critical, word: "fsync is off for the whole server", provoke: set()},
			{name: "torn pages", check: "settings", severity: ops.Warning, word: "full_page_writes is off", provoke: set()},
			{name: "no autovacuum", check: "settings", severity: ops.Critical, word: "autovacuum is off", provoke: set(`ALTER SYSTEM SET autovacuum = off`, reload)},
			{name: "careless server", check: "settings", severity: ops.Warning, word: "synchronous_commit is off", provoke: set(`ALTER SYSTEM SET synchronous_commit = off`, reload)},
			{name: "careless writer", check: "settings", severity: ops.Warning, word: `for the role "clerk"`, provoke: set(`ALTER ROLE clerk SET synchronous_commit = off`)},
			{name: "hasty relay", check: "settings", severity: ops.Warning, word: "statement_timeout is 500ms", req: relay, provoke: set(`ALTER ROLE carrier SET statement_timeout = '500ms'`)},
			{name: "read-only database", check: "settings", severity: ops.Critical, word: "default_transaction_read_only", req: relay, provoke: func(d *db, _ *owner) {
				d.exec(`ALTER DATABASE postgres SET default_transaction_read_only = on`)
			}},
			{name: "absent standby", check: "durability", severity: ops.Critical, word: "no synchronous standby", provoke: set(`ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, reload)},
			{
				name: "unused slot", check: "horizon", severity: ops.Critical, word: `slot "forgotten"`, req: ops.ExamineRequest{Limits: ops.Limits{WAL: 1}},
				provoke: set(`SELECT pg_create_physical_replication_slot('forgotten', true)`, `CREATE TABLE box.noise AS SELECT g FROM generate_series(1, 1000) g`, `DROP TABLE box.noise`),
			},
			{
				name: "subscription", check: "subscriptions", severity: ops.Critical, word: `subscription "feed"`,
				provoke: func(d *db, _ *owner) {
					source := &db{T: t, pool: newPool(t, pg.Database(t)), schema: "box", lanes: 4}
					if _, err := source.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
						t.Fatal(err)
					}
					source.exec(`CREATE PUBLICATION everything FOR ALL TABLES`)
					source.exec(`SELECT pg_create_logical_replication_slot('feed', 'pgoutput')`)
					d.exec(`CREATE SUBSCRIPTION feed CONNECTION '` + source.pool.Config().ConnString() +
						`' PUBLICATION everything WITH (create_slot = false, slot_name = 'feed', copy_data = false, enabled = false)`)
				},
			},
		} {
			t.Run(a.name, func(t *testing.T) {
				a.suffer(&db{T: t, pool: d.pool, schema: d.schema, lanes: d.lanes}, o)
			})
		}
		t.Run("replay without a standby", func(t *testing.T) {
			// The server counts the connection that dropped the subscription's slot until that ends.
			d.untilCount(`SELECT count(*) FROM (SELECT count(*) AS n FROM pg_stat_replication) AS a WHERE n = 0`)
			s := pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Durable: pgstore.Replayed})
			if f := d.ill(d.examine(s, ops.ExamineRequest{}, "durability"), "durable=replay"); f == nil || f.Severity != ops.Critical {
				t.Errorf("%+v", f)
			}
		})
		t.Run("connections", func(t *testing.T) { crowd(t, d) })
	})
}

// What the doctor prints for a read-only database runs in a session that is
// read-only, and it does not call a relay dead that cannot send its heartbeat.
func TestDoctorOfAReadOnlyDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		pg := testserver.SharedPostgres(t, version)
		d := &db{T: t, pool: newPool(t, pg.Database(t)), schema: "box", lanes: 4}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
			t.Fatal(err)
		}
		o := d.owner("a")
		d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`) // with nothing to send, no relay is missing
		d.exec(`UPDATE box.relay SET alive_until = clock_timestamp() - interval '5 seconds'`)
		for _, role := range []bool{false, true} {
			if role {
				d.exec(`ALTER ROLE CURRENT_USER IN DATABASE ` + quoted(d) + ` SET default_transaction_read_only = on`)
			} else {
				d.exec(`ALTER DATABASE ` + quoted(d) + ` SET default_transaction_read_only = on`)
			}
			d.pool.Reset()
			found := d.ill(d.examine(o.store, ops.ExamineRequest{}, "settings"), "default_transaction_read_only")
			if found == nil {
				t.Fatal("nothing was found")
			}
			relays := d.examine(o.store, ops.ExamineRequest{}, "relays")
			if what := relays[0].What; strings.Contains(what, "lives") || !strings.Contains(what, "from a") || !strings.Contains(relays[0].Fix, "read its log") {
				t.Errorf("relays: %+v", relays[0])
			}
			for _, fix := range found.SQL {
				d.exec(fix)
			}
			d.pool.Reset()
			if found = d.ill(d.examine(o.store, ops.ExamineRequest{}, "settings"), "default_transaction_read_only"); found != nil {
				t.Errorf("still there after its fix: %+v", found)
			}
		}
	})
}

// Where the whole server is read-only the fix is the server's: a setting of the role that
// asks would leave the writers shut out.
func TestDoctorOfAReadOnlyServer(t *testing.T) {
	t.Parallel()
	pg := testserver.StartPostgres(t, "18")
	d := &db{T: t, pool: newPool(t, pg.Database(t)), schema: "box", lanes: 4}
	if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	o := d.owner("a")
	readOnly := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; { // a reload takes a moment to arrive
			d.pool.Reset()
			var is string
			if err := d.pool.QueryRow(t.Context(), `SHOW default_transaction_read_only`).Scan(&is); err != nil {
				t.Fatal(err)
			} else if is == want {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("default_transaction_read_only is %s, want %s", is, want)
			}
		}
	}
	d.exec(`ALTER SYSTEM SET default_transaction_read_only = on`)
	d.exec(`SELECT pg_reload_conf()`)
	readOnly("on")
	found := d.ill(d.examine(o.store, ops.ExamineRequest{}, "settings"), "default_transaction_read_only")
	if found == nil || strings.Contains(strings.Join(found.SQL, ";"), "ROLE") {
		t.Fatalf("found %+v, want a fix for the server", found)
	}
	for _, fix := range found.SQL {
		d.exec(fix)
	}
	readOnly("off")
	if found = d.ill(d.examine(o.store, ops.ExamineRequest{}, "settings"), "default_transaction_read_only"); found != nil {
		t.Errorf("still there after its fix: %+v", found)
	}
}

// quoted is the database's name.
func quoted(d *db) string {
	return pgx.Identifier{d.pool.Config().ConnConfig.Database}.Sanitize()
}

// crowd uses up the server's connections.
func crowd(t *testing.T, d *db) {
	t.Helper()
	ctx := t.Context()
	var conns []*pgx.Conn
	for range 52 {
		conn, err := pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
		if err != nil {
			break
		}
		conns = append(conns, conn)
	}
	if f := d.ill(d.examine(d.store("main"), ops.ExamineRequest{}, "connections"), "are in use"); f == nil || f.Severity != ops.Warning {
		t.Errorf("%d more connections: %+v", len(conns), f)
	}
	for _, c := range conns {
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	d.untilCount(`SELECT count(*) FROM (SELECT count(*) AS n FROM pg_stat_activity WHERE backend_type = 'client backend') AS a WHERE n < 40`)
	if f := d.ill(d.examine(d.store("main"), ops.ExamineRequest{}, "connections"), "are in use"); f != nil {
		t.Errorf("%+v", f)
	}
}

func TestDoctorSeesAPooler(t *testing.T) {
	d := fresh(t, "18", 4)
	behind, err := url.Parse(d.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	behind.Host = asPooler(t, behind.Host)
	for mode, want := range map[string]ops.Severity{"cache_statement": ops.Warning, "exec": ops.OK} {
		cfg, err := pgxpool.ParseConfig(behind.String() + "&default_query_exec_mode=" + mode)
		if err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		all, err := pgstore.New(pool, &pgstore.Options{Schema: d.schema}).Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Again: time.Millisecond})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		for _, f := range all {
			if f.Check == "pooler" && (f.Severity != want || want != ops.OK && f.Fix == "") {
				t.Errorf("%s: %+v", mode, f)
			}
		}
	}
	if f := d.examine(d.store("main"), ops.ExamineRequest{}, "pooler"); f[0].Severity != ops.OK {
		t.Errorf("without a pooler: %+v", f)
	}
}

// An outbox in partitions is in order too, until nobody makes new ones.
func TestDoctorFindsPartitionsThatRunOut(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.convert()
		req := ops.ExamineRequest{Only: []string{"sequence", "unlogged", "columns", "indexes", "constraints", "triggers", "wraparound", "vacuum", "retention"}}
		for _, f := range d.examine(d.store("main"), req, "partitions") {
			if f.Severity != ops.OK {
				d.Errorf("fresh: %+v", f)
			}
		}
		found, err := d.store("main").Office().Doctor.Examine(d.Context(), req)
		if err != nil {
			d.Fatal(err)
		}
		for _, f := range found {
			if f.Severity != ops.OK {
				d.Errorf("in partitions: %+v", f)
			}
		}
		p, err := d.store("main").Office().Partitions.Partitions(d.Context())
		if err != nil {
			d.Fatal(err)
		}
		top := p.List[len(p.List)-1].Above
		tend := func(d *db, o *owner) { o.drain(); d.tend(ops.TendRequest{OlderThan: keep}) }
		for _, a := range []ailment{
			{
				name: "none ahead", check: "partitions", severity: ops.Warning, word: "no partition is made ahead", repair: tend,
				provoke: func(d *db, _ *owner) { d.exec(`SELECT setval('box.outbox_seq', $1)`, top-60_000_000_000) },
			},
			{name: "numbers run out", check: "partitions", severity: ops.Critical, word: "numbers run out", repair: tend, provoke: func(d *db, _ *owner) {
				p, err := d.store("main").Office().Partitions.Partitions(d.Context())
				if err != nil {
					d.Fatal(err)
				}
				d.exec(`SELECT setval('box.outbox_seq', $1)`, p.List[len(p.List)-1].Above-1000)
			}},
		} {
			a.suffer(d, o)
		}
	})
}
