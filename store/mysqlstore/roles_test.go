package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/storetest"
)

// cast is an outbox with roles, and a pool for a user of each.
type cast struct {
	root, writer, relay, reader, admin *sql.DB
}

func newCast(t *testing.T, server *testserver.MySQL) cast {
	t.Helper()
	url := server.Database(t)
	database := url[strings.LastIndex(url, "/")+1:]
	prefix := database[:10]
	c := cast{root: pool(t, url)}
	exec := func(statements ...string) {
		t.Helper()
		for _, one := range statements {
			if _, err := c.root.ExecContext(context.WithoutCancel(t.Context()), one); err != nil {
				t.Fatalf("%s: %v", one, err)
			}
		}
	}
	for range 2 { // it can be repeated
		steps, err := New(c.root, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: testLanes, Roles: true, RolePrefix: prefix})
		if err != nil || len(steps) == 0 || steps[len(steps)-1].Name != "roles" {
			t.Fatalf("steps %v, error %v", steps, err)
		}
	}
	for role, to := range map[string]**sql.DB{roleWriter: &c.writer, roleRelay: &c.relay, roleReader: &c.reader, roleAdmin: &c.admin} {
		user, role := prefix+"_u_"+role, prefix+"_"+role
		exec("CREATE USER '"+user+"'@'%' IDENTIFIED BY 'word'", "GRANT '"+role+"' TO '"+user+"'@'%'")
		t.Cleanup(func() { exec("DROP USER '"+user+"'@'%'", "DROP ROLE '"+role+"'") })
		if strings.HasPrefix(server.Version, "mysql") {
			exec("SET DEFAULT ROLE ALL TO '" + user + "'@'%'")
		} else {
			exec("SET DEFAULT ROLE '" + role + "' FOR '" + user + "'@'%'")
		}
		*to = pool(t, strings.Replace(url, "root@", user+":word@", 1))
	}
	return c
}

// Each role may do what it is for, and nothing else.
func TestRoles(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		c := newCast(t, server)
		ctx := t.Context()
		tx, err := c.writer.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		w := writer{tx}
		for range 3 {
			if err := w.Enqueue(ctx, postrider.Message{Topic: "t", Key: "k"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		relay := New(c.relay, &Options{MakePipe: true})
		g := lease(t, relay, "a")
		if got := carry(t, relay, "a", &g); len(got) != 3 {
			t.Errorf("read %v", got)
		}
		// The relay's user sees the statements of others, through his role.
		asleep, wake := context.WithCancel(ctx)
		slept := make(chan struct{})
		go func() {
			defer close(slept)
			_, _ = c.root.ExecContext(asleep, "DO SLEEP(60)") // ends with an error, when it is woken
		}()
		waitFor(t, "a statement of another user is seen", func() bool {
			found, err := sessions.Oldest(ctx, c.relay)
			return err == nil && found.Seconds >= 0
		})
		wake()
		<-slept
		for who, office := range map[string]*ops.Office{"reader": New(c.reader, nil).Office(), "admin": New(c.admin, nil).Office(), "relay": relay.Office()} {
			if st, err := office.Admin.Status(ctx); err != nil || len(st.Alarms) > 0 {
				t.Errorf("status as %s: alarms %q, error %v", who, st.Alarms, err)
			}
			if _, err := list[int64](ctx, c.reader, "SELECT COUNT(*) FROM postrider_messages"); err != nil {
				t.Errorf("view as %s: %v", who, err)
			}
		}
		pools := map[string]*sql.DB{"writer": c.writer, "relay": c.relay, "reader": c.reader, "admin": c.admin}
		for query, by := range map[string]string{
			"SELECT payload FROM postrider_outbox":                                          "writer reader",
			"SELECT payload FROM postrider_parked":                                          "writer reader",
			"SELECT seq FROM postrider_outbox":                                              "writer",
			"INSERT INTO postrider_outbox (seq, topic) VALUES (7000, 't')":                  "writer relay reader admin",
			"INSERT INTO postrider_outbox (topic) VALUES ('t')":                             "relay reader admin",
			"UPDATE postrider_outbox SET topic = 'x'":                                       "writer relay reader admin",
			"DELETE FROM postrider_outbox":                                                  "writer reader admin",
			"UPDATE postrider_progress SET pos = 0":                                         "writer reader",
			"DELETE FROM postrider_parked":                                                  "writer reader",
			"INSERT INTO postrider_hold (pipe, lane, `key`, at) VALUES ('main', 0, 'k', 0)": "writer reader",
			"UPDATE postrider_info SET lanes = 3":                                           "writer relay reader admin",
			"UPDATE postrider_journal SET reason = 'other'":                                 "writer relay reader admin",
			"DELETE FROM postrider_journal":                                                 "writer relay reader admin",
			"DELETE FROM postrider_pipe":                                                    "writer relay reader",
			"CREATE TABLE mine (a INT)":                                                     "writer relay reader admin",
			"DROP TABLE postrider_outbox":                                                   "writer relay reader admin",
		} {
			for _, who := range strings.Fields(by) {
				_, err := pools[who].ExecContext(ctx, query)
				if code := db.Code(err); code != db.ErrTableDenied && code != db.ErrColumnDenied && code != db.ErrAccessDB {
					t.Errorf("%s: %s: error %v", who, query, err)
				}
			}
		}
	})
}

// Every table and view of an outbox has a decision, and every column of the two that are granted by columns.
func TestRolesDecideAboutEverything(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		box := newOutbox(t, server, 1)
		there, err := list[string](t.Context(), box, "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME")
		if err != nil {
			t.Fatal(err)
		}
		var decided []string
		for _, g := range grants() {
			decided = append(decided, "postrider_"+g.table)
		}
		slices.Sort(decided)
		if !slices.Equal(there, decided) {
			t.Errorf("tables and views %q, decided %q", there, decided)
		}
		for table, columns := range map[string]string{"postrider_outbox": shown + ", payload", "postrider_parked": aside + ", payload"} {
			names, err := list[string](t.Context(), box, "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? ORDER BY COLUMN_NAME", table)
			known := strings.Split(strings.ReplaceAll(columns, "`", ""), ", ")
			slices.Sort(known)
			slices.Sort(names)
			if err != nil || !slices.Equal(names, known) {
				t.Errorf("%s: columns %q, decided %q, error %v", table, names, known, err)
			}
		}
	})
}

// The statements that are printed are those that a user may run who may make roles, and another one is told.
func TestRolesNeedAPrivilege(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		c := newCast(t, server)
		_, err := New(c.admin, nil).Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Roles: true})
		if err == nil || !strings.Contains(err.Error(), "migrate --roles --print-sql") {
			t.Errorf("error %v", err)
		}
		for prefix, want := range map[string]string{"a'b": "no quotes", strings.Repeat("p", 30): "at most"} {
			if _, err := New(c.root, nil).Office().Roles.RolesSQL(prefix); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("prefix %q: error %v", prefix, err)
			}
		}
		if text, err := New(c.root, nil).Office().Roles.RolesSQL("shop"); err != nil || !strings.Contains(text, "GRANT PROCESS ON *.* TO 'shop_relay';") {
			t.Errorf("%s, error %v", text, err)
		}
	})
}

// castEnv is an env in which each user has one role.
type castEnv struct {
	env
	cast
}

func (e *castEnv) Store() store.Store { return New(e.relay, &Options{MakePipe: true}) }

func (e *castEnv) Office() *ops.Office {
	office := New(e.admin, &Options{MakePipe: true}).Office()
	office.Retention = New(e.relay, &Options{MakePipe: true}).Office().Retention // a relay's: nobody else may delete rows
	return office
}

func (e *castEnv) Begin(ctx context.Context) (storetest.Tx, error) {
	tx, err := e.writer.BeginTx(ctx, nil)
	return writer{tx}, err
}

// The whole contract holds where relays, people and writers are users of one role each.
//
// Promises: L
func TestConformanceWithRoles(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") != "1" {
		t.Log("short form: TestRoles; POSTRIDER_MATRIX=1 runs the suite")
		return
	}
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		storetest.Run(t, func(t *testing.T) storetest.Env {
			t.Helper()
			c := newCast(t, server)
			return &castEnv{env{db: c.root}, c}
		})
	})
}

// A consumer's user works with the tables of an inbox, and cannot undo what it has claimed.
//
// Promises: E
func TestConsumerRole(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		const prefix, user = "inboxes", "inboxes_user"
		e, _ := newInbox(t, server, func(c *mysql.Config) { c.InterpolateParams = true })
		root := e.DB.(*sql.DB)
		exec := func(statement string) {
			t.Helper()
			if _, err := root.ExecContext(context.WithoutCancel(t.Context()), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		for range 2 {
			if err := (admin.Inboxes{DB: root, Dialect: dialect.MySQL}).MakeRoles(t.Context(), prefix); err != nil {
				t.Fatal(err)
			}
		}
		exec("CREATE USER '" + user + "'@'%' IDENTIFIED BY 'word'")
		exec("GRANT 'inboxes_consumer' TO '" + user + "'@'%'")
		exec("GRANT SELECT, INSERT ON effect TO '" + user + "'@'%'")
		t.Cleanup(func() {
			exec("DROP USER '" + user + "'@'%'")
			for _, role := range []string{"consumer", "reader", "admin"} {
				exec("DROP ROLE 'inboxes_" + role + "'")
			}
		})
		if strings.HasPrefix(server.Version, "mysql") {
			exec("SET DEFAULT ROLE ALL TO '" + user + "'@'%'")
		} else {
			exec("SET DEFAULT ROLE 'inboxes_consumer' FOR '" + user + "'@'%'")
		}
		var database string
		if err := root.QueryRow("SELECT DATABASE()").Scan(&database); err != nil {
			t.Fatal(err)
		}
		own := pool(t, strings.Replace(server.DatabaseURL(database), "root@", user+":word@", 1))
		bus := membroker.New(nil)
		source := bus.Source("billing", "orders")
		defer source.Close()
		handler := func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			if m.ID == "bad" {
				return errors.New("hopeless")
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (name, n) VALUES (?, ?)", m.Key, m.Version)
			return err
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		c := consumer.New(source, consumer.SQL(own, dialect.MySQL), &consumer.Options{
			Name: "billing", MaxAttempts: 2, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond,
			Order: func(string) inbox.Order { return inbox.Contiguous },
		})
		c.HandleMessage("order.changed", handler)
		go func() { ended <- c.Run(ctx) }()
		sink := bus.Sink()
		for _, m := range []postrider.Message{ // the second waits for the first
			{ID: "a2", Key: "a", Version: 2}, {ID: "a1", Key: "a", Version: 1}, {ID: "bad", Key: "b", Version: 1}, {ID: "b2", Key: "b", Version: 2},
		} {
			m.Topic, m.Type, m.Payload = "orders", "order.changed", []byte("x")
			if err := errors.Join(sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m, m}})...); err != nil {
				t.Fatal(err)
			}
		}
		in := inbox.New(dialect.MySQL, "billing", nil)
		eventually(t, "two effects and a dead letter", func() bool {
			acts, err := e.Acts(t.Context())
			dead, derr := in.DeadLetters(t.Context(), root, "", 10)
			if err := errors.Join(err, derr); err != nil {
				t.Fatal(err)
			}
			return len(acts) == 2 && len(dead) == 1
		})
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, query := range []string{
			"DELETE FROM postrider_inbox", "UPDATE postrider_inbox SET message_id = 'x'", "SELECT * FROM postrider_inbox_journal",
			"DELETE FROM postrider_inbox_journal", "DELETE FROM postrider_inbox_mark", "DROP TABLE postrider_inbox", "UPDATE postrider_inbox_schema SET version = 1",
		} {
			_, err := own.ExecContext(t.Context(), query)
			if code := db.Code(err); code != db.ErrTableDenied && code != db.ErrColumnDenied {
				t.Errorf("%s: error %v", query, err)
			}
		}
	})
}
