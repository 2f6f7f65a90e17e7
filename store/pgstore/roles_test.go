package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

var logins atomic.Int64

// roles makes the roles of the outbox, and a login for each, by its suffix.
func (d *db) roles() map[string]*pgxpool.Pool {
	d.Helper()
	made, err := d.makeRoles()
	if err != nil {
		d.Fatal(err)
	}
	pools := map[string]*pgxpool.Pool{}
	for suffix, login := range made {
		pools[suffix] = d.as(login)
		d.Cleanup(func() {
			group := `"` + d.schema + `_` + suffix + `"`
			for _, text := range []string{`DROP OWNED BY ` + group, `DROP ROLE ` + login, `DROP ROLE ` + group} {
				if _, err := d.pool.Exec(context.Background(), text); err != nil {
					d.Errorf("%s: %v", text, err)
				}
			}
		})
	}
	return pools
}

// makeRoles makes the roles of the outbox and returns the name of a login for each, by its suffix.
func (d *db) makeRoles() (map[string]string, error) {
	steps, err := d.store("main").Office().Migrator.Migrate(d.Context(), ops.MigrateRequest{Roles: true})
	if err != nil || len(steps) != 1 || steps[0].Name != "roles" {
		return nil, fmt.Errorf("roles: %+v, %w", steps, err)
	}
	made := map[string]string{}
	for _, suffix := range []string{"writer", "relay", "reader", "admin"} {
		made[suffix] = fmt.Sprintf("login_%d", logins.Add(1))
		if _, err := d.pool.Exec(d.Context(), `CREATE ROLE `+made[suffix]+` LOGIN IN ROLE "`+d.schema+`_`+suffix+`"`); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// Each role does what it is for and nothing else: every forbidden act
// is tried.
//
// Promises: C
func TestRolesForbid(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		pools := d.roles()
		d.exec(`INSERT INTO box.outbox (topic, key, type, payload) VALUES ('t', 'k', 'x', 'secret')`)
		for role, acts := range map[string][]string{
			"writer": {
				`SELECT payload FROM box.outbox`, `SELECT count(*) FROM box.outbox`, `SELECT * FROM box.messages`,
				`INSERT INTO box.outbox (topic, xid) VALUES ('t', '1')`, `INSERT INTO box.outbox (topic, seq) VALUES ('t', 1)`,
				`INSERT INTO box.outbox (topic, lane) VALUES ('t', DEFAULT)`, `INSERT INTO box.outbox (topic, created_at) VALUES ('t', now())`,
				`INSERT INTO box.outbox (topic) VALUES ('t') RETURNING seq`, `INSERT INTO box.outbox (topic, seq) OVERRIDING SYSTEM VALUE VALUES ('t', 1)`,
				`UPDATE box.outbox SET topic = 'u'`, `DELETE FROM box.outbox`, `TRUNCATE box.outbox`, `DO 'BEGIN LOCK TABLE box.outbox IN SHARE MODE; END'`,
				`SELECT setval('box.outbox_seq', 1)`, `SELECT last_value FROM box.outbox_seq`, `ALTER SEQUENCE box.outbox_seq CACHE 10`,
				`SELECT * FROM box.parked`, `INSERT INTO box.request (pipe, lane, seq, kind) VALUES ('main', 0, 1, 'discard')`,
				`UPDATE box.pipe SET pos = 1`, `DELETE FROM box.progress`, `UPDATE box.outbox_info SET floor = 1`,
				`CREATE TRIGGER x BEFORE INSERT ON box.outbox EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
				`COPY box.outbox (topic, seq) FROM STDIN`, `ALTER TABLE box.outbox ENABLE ROW LEVEL SECURITY`, `CREATE TABLE box.mine ()`,
			},
			"relay": {
				`INSERT INTO box.outbox (topic) VALUES ('t')`, `UPDATE box.outbox SET topic = 'u'`, `TRUNCATE box.outbox`,
				`UPDATE box.progress SET pos = 1`, `UPDATE box.pipe SET pos = 1`, `INSERT INTO box.request (pipe, lane, seq, kind, done_at) VALUES ('main', 0, 1, 'retry', now())`,
				`UPDATE box.request SET actor = 'somebody'`, `UPDATE box.outbox_info SET lanes = 1`, `UPDATE box.outbox_info SET cluster = 1`,
				`INSERT INTO box.migration (version, name, checksum) VALUES (99, 'x', '')`, `ALTER TABLE box.outbox DISABLE TRIGGER ALL`,
			},
			"reader": {
				`SELECT payload FROM box.outbox`, `SELECT * FROM box.outbox`, `SELECT payload FROM box.parked`, `SELECT o FROM box.outbox o`,
				`INSERT INTO box.request (pipe, lane, seq, kind) VALUES ('main', 0, 1, 'discard')`, `INSERT INTO box.outbox (topic) VALUES ('t')`,
				`DELETE FROM box.parked`, `INSERT INTO box.progress (pipe, lane, n, owner, pos, low, next_xid, delivered) VALUES ('main', 0, 9, '', 9, 0, 9, 0)`,
				`DELETE FROM box.relay`, `SELECT nextval('box.outbox_seq')`,
			},
			"admin": {
				`INSERT INTO box.outbox (topic) VALUES ('t')`, `DELETE FROM box.outbox`, `UPDATE box.pipe SET pos = 1`,
				`UPDATE box.request SET actor = 'somebody'`, `UPDATE box.progress SET pos = 1`, `SELECT nextval('box.outbox_seq')`, `UPDATE box.outbox_info SET floor = 1`,
				`SELECT box.partition_note()`, `SELECT box.partition_make(2)`, `SELECT box.partition_roll('1s', 1)`, `SELECT box.partition_drop('0s', false, 50)`,
			},
		} {
			for _, act := range acts {
				_, err := pools[role].Exec(t.Context(), d.sql(act))
				var pg *pgconn.PgError
				if !errors.As(err, &pg) || pg.Code != "42501" && pg.Code != "428C9" { // the latter: generated always
					t.Errorf("%s: %s: %v, want permission denied", role, act, err)
				}
			}
		}
		o.want("x")
	})
}

// What each role is for works: psql, COPY and Enqueue as the writer, status and
// the view as the reader, dead letters and acts as the admin, also with no relay alive.
func TestRolesAllow(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		pools := d.roles()
		writer := pools["writer"]
		if _, err := writer.Exec(t.Context(), d.sql(`INSERT INTO box.outbox (topic, key, type, headers) VALUES ('t', 'k', 'psql', '{"a": "é"}')`)); err != nil {
			t.Error(err)
		}
		if _, err := writer.CopyFrom(t.Context(), pgx.Identifier{d.schema, "outbox"}, []string{"topic", "key", "type"},
			pgx.CopyFromRows([][]any{{"t", "k", "copy"}})); err != nil {
			t.Error(err)
		}
		ob := outbox.New(dialect.Postgres, &outbox.Options{Schema: d.schema})
		for _, msgs := range [][]postrider.Message{
			{{Topic: "t", Key: "k", Type: "one", Payload: []byte("secret")}},
			{{Topic: "t", Key: "k", Type: "two"}, {Topic: "t", Key: "k", Type: "three", Headers: map[string]string{"a": "b"}}},
		} {
			if err := pgx.BeginFunc(t.Context(), writer, func(tx pgx.Tx) error { return ob.Enqueue(t.Context(), outbox.Pgx(tx), msgs...) }); err != nil {
				t.Error(err)
			}
		}
		relay := &owner{db: d, store: d.storeAs(pools["relay"]), boot: "r", page: 10}
		if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: o.boot, TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		relay.lease()
		relay.parkAll(store.Dead)

		reader := d.storeAs(pools["reader"])
		if st, err := reader.Office().Admin.Status(t.Context()); err != nil || st.Parked["dead"] != 5 {
			t.Errorf("status: %+v, %v", st.Parked, err)
		}
		if n, err := pools["reader"].Exec(t.Context(), d.sql(`SELECT * FROM box.messages`)); err != nil || n.RowsAffected() != 5 {
			t.Errorf("messages: %v, %v", n, err)
		}
		if _, err := reader.Office().Admin.Parked(t.Context(), ops.ParkedQuery{}); !errors.Is(err, store.ErrUnusable) {
			t.Errorf("the reader lists payloads: %v", err)
		}
		if _, err := relay.store.Lease(t.Context(), store.LeaseRequest{BootID: "r", TTL: time.Minute, Leave: true}); err != nil {
			t.Fatal(err)
		}
		person := d.storeAs(pools["admin"])
		dead, err := person.Office().Admin.Parked(t.Context(), ops.ParkedQuery{State: store.Dead})
		if err != nil || len(dead) != 5 || string(dead[2].Message.Payload) != "secret" {
			t.Fatalf("parked: %d, %v", len(dead), err)
		}
		acts := []store.Act{{Kind: store.ActDiscard, Seq: dead[0].Seq, Actor: "me"}, {Kind: store.ActRetry, Seq: dead[1].Seq, Actor: "me"}}
		results, err := admin.Execute(t.Context(), person, person.Office().Admin, acts, nil)
		for _, r := range results {
			if r.Result != "done" {
				t.Errorf("act %+v", r)
			}
		}
		if err != nil || len(results) != 2 {
			t.Error(err)
		}
		for role, pool := range pools { // a program of any role tells a schema that it does not know
			if have, _, err := d.storeAs(pool).Office().Migrator.SchemaVersion(t.Context()); err != nil || have != pgstore.Version {
				t.Errorf("%s: version %d, %v", role, have, err)
			}
		}
	})
}

func (d *db) storeAs(pool *pgxpool.Pool) *pgstore.Store {
	return pgstore.New(pool, &pgstore.Options{Schema: d.schema})
}

// parkAll reads and parks everything that is pending.
func (o *owner) parkAll(state store.State) {
	o.Helper()
	for _, b := range o.read() {
		st := store.Settlement{BootID: o.boot, Lane: b.Lane, Epoch: o.grant[b.Lane].Epoch, Position: b.Position, Delivered: len(b.Messages)}
		for i, m := range b.Messages {
			st.Park = append(st.Park, store.Park{Seq: b.Meta[i].Seq, Message: m, State: state, Captures: true, Attempts: 1, Class: "failed"})
		}
		if lost, err := o.store.Settle(o.Context(), []store.Settlement{st}); err != nil || len(lost) > 0 {
			o.Fatal(lost, err)
		}
	}
}

// keptBack are the columns of outbox and parked that no reader sees.
var keptBack = []string{"payload"}

// Every relation of the schema and every column that may hold a message has
// been decided about, and nothing is granted to everybody.
//
// Promises: C
func TestEveryRelationHasADecision(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		text, err := d.store("main").Office().Roles.RolesSQL("")
		if err != nil {
			t.Fatal(err)
		}
		pools := d.roles()
		relations := d.strings(`SELECT relname FROM pg_class c WHERE relnamespace = 'box'::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
			AND NOT relispartition AND NOT EXISTS (SELECT FROM pg_depend x WHERE x.objid = c.oid AND x.deptype = 'i')`)
		for _, name := range relations {
			if !strings.Contains(text, "('"+name+"', ") && !strings.Contains(text, ","+name+",") {
				t.Errorf("%s: nobody has decided which roles may do what: see grants()", name)
			}
		}
		for _, table := range []string{"outbox", "parked"} {
			var seen []string
			for _, column := range d.strings(`SELECT attname FROM pg_attribute WHERE attrelid = 'box.` + table + `'::regclass AND attnum > 0 AND NOT attisdropped`) {
				_, err := pools["reader"].Exec(t.Context(), d.sql(`SELECT `+column+` FROM box.`+table))
				if err == nil {
					seen = append(seen, column)
				}
				if hidden := slices.Contains(keptBack, column); hidden != (err != nil) {
					t.Errorf("%s.%s: kept back from readers: %v, in the list of what is: %v", table, column, err != nil, hidden)
				}
			}
			if len(seen) < 10 {
				t.Errorf("the reader sees %v of %s", seen, table)
			}
		}
		if open := d.strings(`SELECT relname FROM pg_class c, aclexplode(c.relacl) a WHERE relnamespace = 'box'::regnamespace AND a.grantee = 0`); len(open) > 0 {
			t.Errorf("everybody may use %v", open)
		}
		if open := d.strings(`SELECT proname FROM pg_proc p WHERE pronamespace = 'box'::regnamespace AND prosecdef
			AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) a WHERE a.grantee = 0) OR proconfig IS NULL)`); len(open) > 0 {
			t.Errorf("everybody may act as the owner, or choose what names mean, by %v", open)
		}
		for _, name := range d.strings(`SELECT proname FROM pg_proc p WHERE pronamespace = 'box'::regnamespace AND proacl IS NOT NULL`) {
			if !strings.Contains(text, "('"+name+"', ") && !strings.Contains(text, ","+name+",") {
				t.Errorf("%s(): nobody has decided who may call it: see grants()", name)
			}
		}
	})
}

// strings is the one column of a query.
func (d *db) strings(text string) []string {
	d.Helper()
	rows, err := d.pool.Query(d.Context(), strings.ReplaceAll(d.sql(text), "'box'", `'"`+d.schema+`"'`))
	if err != nil {
		d.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.Fatal(err)
	}
	return found
}

// The roles can be made again, take back what was granted to them by hand, and
// keep what they have through migrations; another outbox has others.
func TestRolesAreMadeAgain(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		d.roles()
		// What is granted to whom; in which order that stands in a row means nothing.
		const acl = `SELECT c.relname || ' ' || coalesce(a.attname, '') || ' ' || item FROM pg_class c
			JOIN LATERAL (SELECT NULL AS attname, c.relacl AS acl UNION ALL SELECT attname, attacl FROM pg_attribute WHERE attrelid = c.oid AND NOT attisdropped) a ON true,
			unnest(a.acl) item WHERE relnamespace = 'box'::regnamespace ORDER BY 1`
		before := d.strings(acl)
		if len(before) < 50 {
			t.Fatalf("%d rights are granted: %q", len(before), before)
		}
		d.exec(`GRANT DELETE ON box.outbox TO "` + d.schema + `_writer"`)
		for _, req := range []ops.MigrateRequest{{Roles: true}, {Target: pgstore.Version - 1}, {}, {Roles: true}} {
			if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			if after := d.strings(acl); !slices.Equal(before, after) && req.Roles {
				t.Errorf("after %+v: %q, before: %q", req, after, before)
			}
		}
		// So does who migrates by the printed statements.
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Target: pgstore.Version - 1}); err != nil {
			t.Fatal(err)
		}
		text, err := d.store("main").Office().Migrator.SQL(pgstore.Version-1, pgstore.Version)
		if err != nil {
			t.Fatal(err)
		}
		d.exec(text)
		if after := d.strings(acl); !slices.Equal(before, after) {
			t.Errorf("after the printed statements: %q, before: %q", after, before)
		}
		_, err = d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Roles: true, RolePrefix: `x"; DROP`})
		wantIs(t, err, store.ErrUnusable)
	})
}

// An owner without CREATEROLE is told which roles are missing; once they exist it
// does the rest itself. After the outbox is removed, the roles can be dropped.
func TestRolesWithoutCreaterole(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 4)
		login := fmt.Sprintf("login_%d", logins.Add(1))
		d.exec(`CREATE ROLE ` + login + ` LOGIN`)
		d.exec(`GRANT CREATE ON DATABASE postgres TO ` + login)
		t.Cleanup(func() {
			for _, text := range []string{`DROP OWNED BY ` + login, `DROP ROLE ` + login} {
				if _, err := d.pool.Exec(context.Background(), text); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			}
		})
		s := d.storeAs(d.as(login))
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil {
			t.Fatal(err)
		}
		prefix := strings.ToLower(d.schema)
		_, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Roles: true, RolePrefix: prefix})
		wantIs(t, err, store.ErrUnusable)
		_, rest, _ := strings.Cut(err.Error(), "run: ")
		statements, _, found := strings.Cut(rest, " Then migrate again")
		if !found || strings.Count(statements, "CREATE ROLE") != 5 {
			t.Fatalf("the error names no statements: %v", err)
		}
		d.exec(statements)
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Roles: true, RolePrefix: prefix}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Target: -1}); err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{"writer", "relay", "reader", "admin", "consumer"} {
			d.exec(`DROP ROLE ` + prefix + `_` + suffix)
		}
	})
}

// Retention and the books are the relay's, pipes the admin's.
func TestRolesKeepTheHouse(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		pools := d.roles()
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a')`)
		o.want("a")
		d.sentAgo("2 hours")
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'b')`)
		o.want("b")
		relay, person := d.storeAs(pools["relay"]), d.storeAs(pools["admin"])
		if b, err := relay.Office().Books.Audit(t.Context(), ops.AuditRequest{}); err != nil || b.Counted != 2 {
			t.Errorf("audit: %+v, %v", b, err)
		}
		if p, err := relay.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r", OlderThan: time.Hour}); err != nil || p.Rows != 1 {
			t.Errorf("prune: %+v, %v", p, err)
		}
		if _, err := relay.Office().Retention.Tidy(t.Context(), ops.TidyRequest{}); err != nil {
			t.Errorf("tidy: %v", err)
		}
		if _, err := person.Office().Pipes.AddPipe(t.Context(), ops.AddPipe{Name: "second", Actor: "me", Reason: "test"}); err != nil {
			t.Errorf("add a pipe: %v", err)
		}
		if err := person.Office().Pipes.PausePipe(t.Context(), ops.PausePipe{Name: "second", Actor: "me", Reason: "test"}); err != nil {
			t.Errorf("pause a pipe: %v", err)
		}
		if _, err := person.Office().Pipes.RemovePipe(t.Context(), ops.RemovePipe{Name: "second", Actor: "me", Reason: "test"}); err != nil {
			t.Errorf("remove a pipe: %v", err)
		}
		erase := ops.EraseRequest{EraseQuery: ops.EraseQuery{Key: "k"}, Actor: "me", Reason: "test"}
		if n, err := person.Office().Eraser.Erase(t.Context(), erase, 10); err != nil || n != 1 {
			t.Errorf("erase: %d, %v", n, err)
		}
		reader, writer := d.storeAs(pools["reader"]), d.storeAs(pools["writer"])
		for what, err := range map[string]error{
			"a reader erases":   second(reader.Office().Eraser.Erase(t.Context(), erase, 10)),
			"a reader pauses":   reader.Office().Pipes.PausePipe(t.Context(), ops.PausePipe{Name: "main", Actor: "me", Reason: "test"}),
			"a reader tidies":   second(reader.Office().Retention.Tidy(t.Context(), ops.TidyRequest{})),
			"a writer looks":    second(writer.Office().Pipes.Pipes(t.Context())),
			"a writer's status": second(writer.Office().Admin.Status(t.Context())),
			"an admin prunes":   second(person.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r"})),
		} {
			if !errors.Is(err, store.ErrUnusable) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// The doctor measures a role by what it is for, and grants it no more:
// an admin removes no rows.
//
// Promises: C
func TestDoctorGrantsARoleWhatItIsFor(t *testing.T) {
	trap(t, func(d *db, _ *owner) {
		pools := d.roles()
		for _, role := range []string{"admin", "reader", "relay"} {
			found := d.examine(d.storeAs(pools[role]), ops.ExamineRequest{}, "privileges")
			if found[0].Severity != ops.OK || !strings.Contains(found[0].What, role) {
				t.Errorf("%s: %+v", role, found[0])
			}
		}
		group := d.text(`SELECT quote_ident(role_prefix || '_admin') FROM box.outbox_info`)
		d.exec(`REVOKE DELETE ON box.parked, box.hold FROM ` + group)
		found := d.examine(d.storeAs(pools["admin"]), ops.ExamineRequest{}, "privileges")
		if len(found[0].SQL) != 2 || strings.Contains(strings.Join(found[0].SQL, " "), "outbox") {
			t.Fatalf("%+v", found[0])
		}
		for _, fix := range found[0].SQL {
			d.exec(fix)
		}
		defer d.exec(fmt.Sprintf(`DROP OWNED BY %v`, found[0].Data["role"]))
		if found = d.examine(d.storeAs(pools["admin"]), ops.ExamineRequest{}, "privileges"); found[0].Severity != ops.OK {
			t.Errorf("after the fix: %+v", found[0])
		}
	})
}

// text reads a text.
func (d *db) text(text string) (s string) {
	d.Helper()
	if err := d.pool.QueryRow(d.Context(), d.sql(text)).Scan(&s); err != nil {
		d.Fatal(err)
	}
	return s
}

// The way back makes views anew: the roles may read them as before.
//
// Promises: C
func TestTheWayBackKeepsGrants(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 4)
		m := d.store("main").Office().Migrator
		if _, err := m.Migrate(t.Context(), ops.MigrateRequest{}); err != nil {
			t.Fatal(err)
		}
		reader := d.roles()["reader"]
		for _, target := range []int{11, 0} {
			if _, err := m.Migrate(t.Context(), ops.MigrateRequest{Target: target}); err != nil {
				t.Fatal(err)
			}
			var n int
			if err := reader.QueryRow(t.Context(), d.sql(`SELECT count(*) FROM box.messages`)).Scan(&n); err != nil {
				t.Errorf("at target %d: %v", target, err)
			}
		}
	})
}
