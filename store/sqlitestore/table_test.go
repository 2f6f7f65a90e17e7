package sqlitestore

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/migrate"
)

const plainInsert = `INSERT INTO postrider_outbox (topic, key, type, payload) VALUES ('orders', 'order-1', 'order.placed', '{"n":1}')`

// goldenLanes may never change: an outbox whose lanes change breaks the order
// of every key in it.
func goldenLanes() map[string]store.Lane {
	return map[string]store.Lane{
		"a": 36, "order-1": 52, "order-2": 4, "ключ": 16, "🔑": 21, "e\u0301": 26,
		strings.Repeat("long ", 100): 48,
	}
}

func TestLaneIsFrozen(t *testing.T) {
	db, _ := newOutbox(t, 64)
	for key, want := range goldenLanes() {
		var lane store.Lane
		err := db.QueryRow(`INSERT INTO postrider_outbox (topic, key) VALUES ('t', ?) RETURNING lane`, key).Scan(&lane)
		if err != nil {
			t.Fatal(err)
		}
		if lane != want || migrate.Lane(key, "", 64) != want {
			t.Errorf("key %.20q: the table says lane %d, Lane says %d, golden is %d", key, lane, migrate.Lane(key, "", 64), want)
		}
	}
	var id string
	var lane store.Lane
	if err := db.QueryRow(`INSERT INTO postrider_outbox (topic) VALUES ('t') RETURNING id, lane`).Scan(&id, &lane); err != nil {
		t.Fatal(err)
	}
	if lane != migrate.Lane("", id, 64) {
		t.Errorf("without a key, id %s: the table says lane %d, Lane says %d", id, lane, migrate.Lane("", id, 64))
	}
}

func TestLanesAreEven(t *testing.T) {
	for _, form := range []string{"order-%d", "%d", "customer/%08d/cart", "018f%04x-7b2c-7000-8000-%012x"} {
		count := map[store.Lane]int{}
		for i := range 64_000 {
			key := strings.ReplaceAll(fmt.Sprintf(form, i, i), "%!(EXTRA int="+fmt.Sprint(i)+")", "")
			count[migrate.Lane(key, "", 64)]++
		}
		for lane := range store.Lane(64) {
			if n := count[lane]; n < 600 || n > 1500 {
				t.Errorf("%s: lane %d has %d of 64,000 keys", form, lane, n)
			}
		}
	}
}

func TestPlainInsert(t *testing.T) {
	db, s := newOutbox(t, 1)
	if _, err := db.Exec(plainInsert); err != nil {
		t.Fatal(err)
	}
	b, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 10}})
	if err != nil {
		t.Fatal(err)
	}
	m := b[0].Messages[0]
	if err := m.Validate(); err != nil || m.ID[14] != '7' || !strings.ContainsRune("89ab", rune(m.ID[19])) {
		t.Errorf("id %s is not a UUIDv7, or the message is invalid: %v", m.ID, err)
	}
	if age := time.Since(m.Time); age < -time.Minute || age > time.Minute {
		t.Errorf("its time is %v", m.Time)
	}
	if string(m.Payload) != `{"n":1}` || m.Key != "order-1" {
		t.Errorf("it came back as %q of key %q", m.Payload, m.Key)
	}
	var state string
	if err := db.QueryRow(`SELECT state FROM postrider_messages`).Scan(&state); err != nil || state != "Pending" {
		t.Errorf("the view shows it as %q, error %v", state, err)
	}
}

func TestConstraintsRefuse(t *testing.T) {
	db, _ := newOutbox(t, 1)
	for want, values := range map[string]string{
		"topic_must_be":              `(topic) VALUES ('')`,
		"key_must_be":                `(topic, key) VALUES ('t', printf('%.513c', 'x'))`,
		"type_must_be":               `(topic, type) VALUES ('t', 'a' || char(0))`,
		"id_must_be":                 `(topic, id) VALUES ('t', 'not a uuid')`,
		"version_must":               `(topic, version) VALUES ('t', -1)`,
		"schema_version":             `(topic, schema_version) VALUES ('t', -1)`,
		"payload_must":               `(topic, payload) VALUES ('t', 7)`,
		"headers_must_be_a_json":     `(topic, headers) VALUES ('t', '[1]')`,
		"headers_must_not_begin":     `(topic, headers) VALUES ('t', '{"a":"1","Postrider-x":"1"}')`,
		"headers_must_be_at_most_64": `(topic, headers) VALUES ('t', '{"a b":"1"}')`,
		"lane":                       `(topic, lane) VALUES ('t', 1)`,
	} {
		_, err := db.Exec("INSERT INTO postrider_outbox " + values)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that names %s", values, err, want)
		}
	}
}

// TestNumbersAreNotUsedTwice: without AUTOINCREMENT the second row would get
// the number of the first, below every cursor.
func TestNumbersAreNotUsedTwice(t *testing.T) {
	db, _ := newOutbox(t, 1)
	last := int64(0)
	for range 3 {
		var seq int64
		if err := db.QueryRow(plainInsert + ` RETURNING seq`).Scan(&seq); err != nil {
			t.Fatal(err)
		}
		if seq <= last {
			t.Fatalf("number %d after number %d", seq, last)
		}
		last = seq
		if _, err := db.Exec(`DELETE FROM postrider_outbox`); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReplacedFileIsNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	s := New(openFile(t, path), nil)
	if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 1}); err != nil {
		t.Fatal(err)
	}
	req := store.LeaseRequest{BootID: "a", TTL: time.Minute}
	if _, err := s.Lease(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{"removed", "replaced"} {
		if _, err := s.Lease(t.Context(), req); !errors.Is(err, store.ErrUnusable) {
			t.Errorf("the file was %s, Lease returned %v", step, err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestChangedIdentityIsNoticed(t *testing.T) {
	db, s := newOutbox(t, 1)
	if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`UPDATE postrider_info SET identity = 'another'`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 1}}); !errors.Is(err, store.ErrIdentity) {
		t.Errorf("Read returned %v", err)
	}
	if _, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a"}}); !errors.Is(err, store.ErrIdentity) {
		t.Errorf("Settle returned %v", err)
	}
}

func TestWithoutSchema(t *testing.T) {
	s := New(openFile(t, filepath.Join(t.TempDir(), "shop.db")), nil)
	if _, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute}); !errors.Is(err, store.ErrSchema) {
		t.Errorf("Lease returned %v", err)
	}
	if _, err := s.Read(t.Context(), []store.LaneRead{{}}); !errors.Is(err, store.ErrSchema) {
		t.Errorf("Read returned %v", err)
	}
	if _, err := s.Office().Admin.Status(t.Context()); !errors.Is(err, store.ErrSchema) {
		t.Errorf("Status returned %v", err)
	}
}

// TestWaitSeesOthers: Wait returns for a message of another connection long
// before its limit.
func TestWaitSeesOthers(t *testing.T) {
	db, s := newOutbox(t, 1)
	if _, err := s.Read(t.Context(), []store.LaneRead{{MaxRecords: 1}}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Wait(t.Context(), time.Hour) }()
	if _, err := db.Exec(plainInsert); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-t.Context().Done():
	case <-time.After(30 * time.Second):
		t.Error("Wait did not see a committed message")
	}
}

const (
	writerEnv      = "POSTRIDER_TEST_WRITER"
	writers        = 4
	perWriter      = 60
	perTransaction = 3
)

// TestMain is the writer process of TestProcesses when it is asked to be.
func TestMain(m *testing.M) {
	if spec := os.Getenv(writerEnv); spec != "" {
		if err := writeFrom(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// writeFrom writes transactions that read before they write; every third one
// rolls back.
func writeFrom(spec string) (err error) {
	name, path, _ := strings.Cut(spec, "=")
	db, err := OpenDB(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for n := range perWriter {
		if err := writeOne(db, name, n); err != nil {
			return fmt.Errorf("writer %s, transaction %d: %w", name, n, err)
		}
	}
	return nil
}

func writeOne(db *sql.DB, name string, n int) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	var count int
	if err := tx.QueryRow(`SELECT count(*) FROM postrider_outbox`).Scan(&count); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	for i := range perTransaction {
		_, err := tx.Exec(`INSERT INTO postrider_outbox (topic, key, version) VALUES ('t', ?, ?)`, name, n*perTransaction+i+1)
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	if n%3 == 2 {
		return tx.Rollback()
	}
	return tx.Commit()
}

// TestProcesses: processes write at once while a relay reads and settles in
// this one. None is refused as busy, and every committed message comes once and
// in the order of its key.
//
// Promises: L
func TestProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	s := New(openFile(t, path), nil)
	if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 2}); err != nil {
		t.Fatal(err)
	}
	g, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan error, writers)
	for w := range writers {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=w%d=%s", writerEnv, w, path))
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			var said []string
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				said = append(said, lines.Text())
			}
			if err := cmd.Wait(); err != nil {
				finished <- fmt.Errorf("%w: %s", err, strings.Join(said, "; "))
				return
			}
			finished <- nil
		}()
	}
	last := map[string]int64{}
	got := 0
	for running, idle := writers, 0; running > 0 || idle < 2; {
		select {
		case err := <-finished:
			if err != nil {
				t.Fatal(err)
			}
			running--
		default:
		}
		n := settleAll(t, s, g.Lanes, last)
		got += n
		if idle++; n > 0 {
			idle = 0
		}
	}
	if want := writers * perWriter * perTransaction * 2 / 3; got != want {
		t.Errorf("%d messages came, %d were committed", got, want)
	}
}

// settleAll reads and settles one batch of every lane and checks that versions
// of each key rise.
func settleAll(t *testing.T, s *Store, lanes []store.LaneGrant, last map[string]int64) int {
	t.Helper()
	got := 0
	for i := range lanes {
		b, err := s.Read(t.Context(), []store.LaneRead{{Lane: lanes[i].Lane, MaxRecords: 7}})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range b[0].Messages {
			if m.Version <= last[m.Key] {
				t.Errorf("key %s: version %d after %d", m.Key, m.Version, last[m.Key])
			}
			last[m.Key] = m.Version
		}
		got += len(b[0].Messages)
		st := store.Settlement{BootID: "a", Lane: lanes[i].Lane, Epoch: lanes[i].Epoch, Position: b[0].Position, Delivered: len(b[0].Messages)}
		lost, err := s.Settle(t.Context(), []store.Settlement{st})
		if err != nil || len(lost) > 0 {
			t.Fatalf("settle: lost %v, error %v", lost, err)
		}
		lanes[i].Epoch++
	}
	return got
}

// TestBusyIsTransient: a writer that holds the lock past the timeout makes an
// error that is not typed: the caller backs off and tries again.
func TestBusyIsTransient(t *testing.T) {
	db, s := newOutbox(t, 1)
	s.box.DB.SetMaxOpenConns(4)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	impatient, err := sql.Open("sqlite", "file:"+fileOf(t, db)+"?_pragma=busy_timeout(1)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := impatient.Close(); err != nil {
			t.Error(err)
		}
	})
	other := New(impatient, nil)
	req := store.LeaseRequest{BootID: "a", TTL: time.Minute}
	_, err = other.Lease(t.Context(), req)
	if err == nil || errors.Is(err, store.ErrUnusable) || errors.Is(err, store.ErrSchema) {
		t.Errorf("Lease beside a writer returned %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Lease(t.Context(), req); err != nil {
		t.Errorf("Lease after the writer had ended: %v", err)
	}
}

func fileOf(t *testing.T, db *sql.DB) string {
	t.Helper()
	var path string
	if err := db.QueryRow(`SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenRefusesMemory(t *testing.T) {
	for _, path := range []string{"", ":memory:"} {
		if db, err := OpenDB(path); err == nil {
			t.Errorf("OpenDB(%q) gave no error", path)
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
