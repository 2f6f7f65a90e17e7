package promises

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// roleDB is a database with an outbox, an inbox and their roles, and opens connections for
// each role.
type roleDB struct {
	*testing.T
	owner  *sql.DB
	url    *url.URL
	prefix string
}

func newRoleDB(t *testing.T, version string) *roleDB {
	t.Helper()
	u, err := url.Parse(postgresDB(t, version))
	if err != nil {
		t.Fatal(err)
	}
	// Roles belong to the cluster, and other tests use the same cluster.
	d := &roleDB{t, openSQL(t, "pgx", u.String()), u, fmt.Sprintf("roles_%d", time.Now().UnixNano())}
	inboxDB(t, d.owner, dialect.Postgres)
	d.exec(`CREATE TABLE postrider.mine (n int)`) // another application's table
	t.Cleanup(func() {
		for _, role := range []string{"writer", "relay", "reader", "admin", "consumer"} {
			name := d.prefix + "_" + role
			if _, err := d.owner.Exec(`DROP OWNED BY ` + name + `; DROP ROLE IF EXISTS ` + name + `_login; DROP ROLE ` + name); err != nil {
				t.Error(err)
			}
		}
	})
	_, err = pgstore.New(pgxPool(t, u.String()), nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Roles: true, RolePrefix: d.prefix})
	if err := errors.Join(err, d.boxes(d.owner).MakeRoles(t.Context(), d.prefix)); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *roleDB) boxes(db *sql.DB) admin.Inboxes {
	return admin.Inboxes{DB: db, Dialect: dialect.Postgres}
}

func (d *roleDB) exec(text string) {
	d.Helper()
	if _, err := d.owner.Exec(text); err != nil {
		d.Fatalf("%s: %v", text, err)
	}
}

// as opens the database as a user with only that role.
func (d *roleDB) as(role string) *sql.DB {
	d.Helper()
	login := d.prefix + "_" + role + "_login"
	d.exec(`CREATE ROLE ` + login + ` LOGIN IN ROLE ` + d.prefix + "_" + role)
	u := *d.url
	u.User = url.User(login)
	return openSQL(d.T, "pgx", u.String())
}

func (d *roleDB) forbidden(db *sql.DB, who string, acts ...string) {
	d.Helper()
	for _, act := range acts {
		_, err := db.Exec(act)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "42501" {
			d.Errorf("%s: %s: %v, want permission denied", who, act, err)
		}
	}
}

func eachRoleDB(t *testing.T, fn func(d *roleDB)) {
	t.Helper()
	versions := testserver.PostgresVersions()
	for _, version := range slices.Compact([]string{versions[0], versions[len(versions)-1]}) {
		t.Run("postgres"+version, func(t *testing.T) { fn(newRoleDB(t, version)) })
	}
}

// TestConsumerRole runs a consumer under its role with all features: orders, stash,
// retries, dead letters, batches. The role makes no tables, cannot read the outbox and
// cannot change the journal.
//
// Promises: C
func TestConsumerRole(t *testing.T) {
	eachRoleDB(t, func(d *roleDB) {
		db := d.as("consumer")
		d.exec(`GRANT SELECT, INSERT ON effect TO ` + d.prefix + `_consumer; GRANT USAGE ON SEQUENCE effect_place_seq TO ` + d.prefix + `_consumer`)
		d.exec(`INSERT INTO postrider.outbox (topic, key, type, payload) VALUES ('t', 'k', 'x', 'secret')`)
		for _, batch := range []int{1, 5} {
			d.consume(db, batch)
		}
		if _, err := db.Exec(`SELECT postrider.claim('billing', 'in SQL'), postrider.claim_version('billing', 'orders', 'in SQL', 3)`); err != nil {
			t.Error(err)
		}
		in := inboxwork.New(dialect.Postgres, "api", nil)
		if _, fresh, err := in.OnceResult(t.Context(), db, postrider.Message{ID: "a"}, func(*sql.Tx) ([]byte, error) { return []byte("first"), nil }); err != nil || !fresh {
			t.Errorf("with a result: %v, %v", fresh, err)
		}
		d.exec(`INSERT INTO postrider.inbox_journal (at, consumer, actor, act, topic, key, message_id, was, now, reason) VALUES (now() - interval '30 days', 'billing', 'x', 'x', '', '', '', 0, 0, '')`)
		d.forbidden(db, "consumer",
			`SELECT payload FROM postrider.outbox`, `SELECT count(*) FROM postrider.outbox`, `SELECT * FROM postrider.parked`, `SELECT * FROM postrider.messages`,
			`INSERT INTO postrider.outbox (topic) VALUES ('t')`, `DELETE FROM postrider.inbox_journal`, `UPDATE postrider.inbox_journal SET actor = 'me'`,
			`TRUNCATE postrider.inbox_journal`, `SELECT * FROM postrider.inbox_journal`, `DELETE FROM postrider.inbox`, `TRUNCATE postrider.inbox`,
			`UPDATE postrider.inbox SET consumer = 'other'`, `DELETE FROM postrider.inbox_mark`, `UPDATE postrider.inbox_mark SET key = ''`,
			`UPDATE postrider.inbox_schema SET version = 0`, `CREATE TABLE postrider.more ()`, `SELECT * FROM postrider.mine`, `DROP TABLE postrider.inbox_stash`,
			`ALTER TABLE postrider.inbox_journal DISABLE TRIGGER ALL`, `CREATE OR REPLACE FUNCTION postrider.claim(a text, b text) RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
	})
}

// consume runs a consumer with early, duplicate, failing and dying messages.
func (d *roleDB) consume(db *sql.DB, batch int) {
	d.Helper()
	topic := fmt.Sprint("batch", batch)
	b := membroker.New(nil)
	var msgs []postrider.Message
	for _, v := range []int{3, 1, 2, 2, 5, 4} {
		m := postrider.JSON(topic, "k", "order.placed", order{topic, v})
		m.ID, m.Version = fmt.Sprint(topic, "-", v), int64(v)
		msgs = append(msgs, m)
	}
	dies := postrider.JSON(topic, "dies", "order.placed", order{"dies", 1})
	dies.ID, dies.Version = topic+"-dies", 1
	publish(d.T, b, append(msgs, dies)...)
	opts := quick
	opts.Batch, opts.Order = batch, func(string) inbox.Order { return inbox.Contiguous }
	src := b.Source("billing", topic)
	c := consumer.New(src, consumer.SQL(db, dialect.Postgres), &opts)
	migrate(d.T, db, c.Inbox()) // as programs do at their start; the tables are already up to date
	tried := false
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
		if o.ID == "dies" {
			return errors.New("no")
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
		if o.N == 2 && !tried {
			tried = true
			return errors.Join(err, errors.New("once"))
		}
		return err
	})
	runWhile(d.T, c.Run, func() bool { s := c.Stats(); return s.Effects < 5 || s.Dead < 1 })
	if got := effects(d.T, d.owner, topic); !slices.Equal(got, from(1, 5)) {
		d.Errorf("batch %d: effects %v, want 1 to 5", batch, got)
	}
}

// TestRolesOfTheInbox: the reader sees no payloads, the admin acts, and neither processes
// messages. A migration grants rights to the objects that it makes.
//
// Promises: C
func TestRolesOfTheInbox(t *testing.T) {
	eachRoleDB(t, func(d *roleDB) {
		in := inboxwork.New(dialect.Postgres, "billing", nil)
		inTx(t, d.owner, func(tx inbox.Conn) error {
			m := placed
			for _, m.ID = range []string{"one", "two"} {
				if _, err := in.Bury(t.Context(), tx, m, "here", 3, "no"); err != nil {
					return err
				}
			}
			m.ID = "old"
			_, err := in.Claim(t.Context(), tx, m)
			return err
		})
		d.exec(`UPDATE postrider.inbox SET processed_at = now() - interval '40 days' WHERE message_id = 'old'`)
		reader, person := d.as("reader"), d.as("admin")
		d.looks(reader)
		d.forbidden(reader, "reader", `SELECT payload FROM postrider.inbox_attempt`, `SELECT result FROM postrider.inbox`, `SELECT payload FROM postrider.inbox_stash`,
			`DELETE FROM postrider.inbox`, `INSERT INTO postrider.inbox_journal (at) VALUES (now())`)
		boxes := d.boxes(person)
		if _, err := boxes.SetMark(t.Context(), admin.MarkRequest{KeyOfConsumer: admin.KeyOfConsumer{Consumer: "billing", Topic: "t", Key: "k"}, Version: 7, Actor: "me", Reason: "test"}); err != nil {
			t.Error(err)
		}
		if n, err := boxes.Prune(t.Context(), admin.ForgetRequest{Consumer: "billing", OlderThan: 30 * 24 * time.Hour, Actor: "ann"}); err != nil || n != 1 {
			t.Errorf("pruned %d, %v", n, err)
		}
		inTx(t, person, func(tx inbox.Conn) error {
			return errors.Join(in.Revive(t.Context(), tx, "one"), in.Discard(t.Context(), tx, "two"))
		})
		if acts, err := boxes.Acts(t.Context(), "billing", 0, 10); err != nil || len(acts) != 2 || acts[0].Act != "prune" {
			t.Errorf("journal: %+v, %v", acts, err)
		}
		d.forbidden(person, "admin", `DELETE FROM postrider.inbox_journal`, `INSERT INTO postrider.inbox (consumer, message_id, topic, type, processed_at) VALUES ('a', 'b', '', '', now())`,
			`UPDATE postrider.inbox SET processed_at = now()`, `DELETE FROM postrider.inbox_mark`)
		d.exec(`DROP TABLE postrider.inbox_stash; GRANT DELETE ON postrider.inbox_journal TO ` + d.prefix + `_consumer; UPDATE postrider.inbox_schema SET version = 1`)
		if err := d.boxes(d.owner).Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.looks(reader)
		d.forbidden(d.as("consumer"), "consumer", `DELETE FROM postrider.inbox_journal`)
		d.decided()
	})
}

// looks requires that status and doctor succeed.
func (d *roleDB) looks(db *sql.DB) {
	d.Helper()
	if all, err := d.boxes(db).Status(d.Context()); err != nil || len(all) != 1 {
		d.Errorf("status: %+v, %v", all, err)
	}
	found, err := d.boxes(db).Doctor().Examine(d.Context(), ops.ExamineRequest{})
	for _, f := range found {
		if f.Check == "consumer-tables" && f.Severity != ops.OK {
			d.Errorf("the doctor reports %+v", f)
		}
	}
	if err != nil || len(found) < 5 {
		d.Errorf("the doctor reports %d findings, %v", len(found), err)
	}
}

// decided requires that the roles cover every relation and function of the inbox.
func (d *roleDB) decided() {
	d.Helper()
	text, err := inbox.RolesSQL("", d.prefix)
	if err != nil {
		d.Fatal(err)
	}
	rows, err := d.owner.Query(`SELECT relname FROM pg_class WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p', 'v') AND relname LIKE 'inbox%'
		UNION SELECT proname FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace AND (proname LIKE 'inbox%' OR proname LIKE 'claim%')`)
	if err != nil {
		d.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var name string
		if err := rows.Scan(&name); err != nil {
			d.Fatal(err)
		}
		if !strings.Contains(text, "\n"+name+"|") && !strings.Contains(text, "'"+name+"|") {
			d.Errorf("no role covers %s: decide its rights", name)
		}
	}
	if err := rows.Err(); err != nil || n < 9 {
		d.Errorf("%d relations and functions, %v", n, err)
	}
}
