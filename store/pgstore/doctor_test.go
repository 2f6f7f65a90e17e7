package pgstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// ailment is one thing that can be wrong with an outbox.
type ailment struct {
	name     string
	check    string // that finds it
	severity ops.Severity
	word     string // in what is found
	provoke  func(d *db, o *owner)
	req      ops.ExamineRequest
	// repair carries out the fix of a finding whose fix is not SQL; nil: run its SQL.
	repair func(d *db, o *owner)
	as     func(d *db) *pgstore.Store // who examines; nil: a superuser
}

// examine makes every check and returns the findings of one.
func (d *db) examine(s *pgstore.Store, req ops.ExamineRequest, check string) []ops.Finding {
	d.Helper()
	req.Again, req.Only = time.Millisecond, append(req.Only, check)
	if req.Timeout == 0 {
		req.Timeout = 30 * time.Second // on a machine that does much else
	}
	all, err := s.Office().Doctor.Examine(d.Context(), req)
	if err != nil {
		d.Fatal(err)
	}
	var found []ops.Finding
	for _, f := range all {
		if f.Check == check {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		d.Fatalf("the check %q found nothing, not even that all is in order", check)
	}
	return found
}

// ill is the one finding that is not OK.
func (d *db) ill(found []ops.Finding, word string) *ops.Finding {
	d.Helper()
	for _, f := range found {
		if f.Severity != ops.OK && strings.Contains(f.What, word) {
			return &f
		}
	}
	return nil
}

// treat runs the SQL of a finding as it is printed.
func (d *db) treat(f *ops.Finding) {
	d.Helper()
	if len(f.SQL) == 0 {
		d.Fatalf("no SQL mends %q: %s", f.What, f.Fix)
	}
	for _, sql := range f.SQL {
		if _, err := d.pool.Exec(d.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			d.Fatalf("%s: %v", sql, err)
		}
	}
}

// suffer provokes an ailment, wants it found with its remedy, and gone after that.
func (a *ailment) suffer(d *db, o *owner) {
	d.Helper()
	s := d.store("main")
	if a.as != nil {
		s = a.as(d)
	}
	a.provoke(d, o)
	until := time.Now().Add(time.Minute) // settings that are reloaded, and backends that end, take a moment
	f := d.ill(d.examine(s, a.req, a.check), a.word)
	for ; f == nil; f = d.ill(d.examine(s, a.req, a.check), a.word) {
		if time.Now().After(until) {
			d.Fatalf("%s: not found: %+v", a.name, d.examine(s, a.req, a.check))
		}
	}
	if f.Severity != a.severity || f.Why == "" || f.Fix == "" {
		d.Errorf("%s: found as %+v, want severity %s, a reason and a fix", a.name, f, a.severity)
	}
	if a.repair != nil {
		a.repair(d, o)
	} else {
		d.treat(f)
	}
	for until = time.Now().Add(time.Minute); ; {
		f := d.ill(d.examine(s, a.req, a.check), a.word)
		if f == nil {
			return
		}
		if time.Now().After(until) {
			d.Fatalf("%s: still there after its fix: %+v", a.name, f)
		}
	}
}

func schemaAilments() []ailment {
	set := func(sql string) func(*db, *owner) { return func(d *db, _ *owner) { d.exec(sql) } }
	adopt := func(d *db, _ *owner) {
		if _, err := d.store("main").Office().Migrator.Migrate(d.Context(), ops.MigrateRequest{Adopt: true}); err != nil {
			d.Fatal(err)
		}
	}
	migrate := func(d *db, _ *owner) {
		if _, err := d.store("main").Office().Migrator.Migrate(d.Context(), ops.MigrateRequest{}); err != nil {
			d.Fatal(err)
		}
	}
	return []ailment{
		{
			name: "older schema", check: "schema", severity: ops.Critical, word: "this program needs", repair: migrate,
			provoke: func(d *db, _ *owner) {
				if _, err := d.store("main").Office().Migrator.Migrate(d.Context(), ops.MigrateRequest{Target: 1}); err != nil {
					d.Fatal(err)
				}
			},
		},
		{
			name: "newer schema", check: "schema", severity: ops.Critical, word: "newer than", provoke: set(`INSERT INTO box.migration (version, name, checksum) VALUES (99, 'of tomorrow', '')`),
			repair: set(`DELETE FROM box.migration WHERE version = 99`),
		},
		{
			name: "newer schema that suits", check: "schema", severity: ops.Warning, word: "works with it",
			provoke: set(`INSERT INTO box.migration (version, name, checksum, compatible) VALUES (99, 'of tomorrow', '', 1)`), repair: set(`DELETE FROM box.migration WHERE version = 99`),
		},
		{
			name: "other text", check: "schema", severity: ops.Critical, word: "a text that differs", provoke: set(`UPDATE box.migration SET checksum = 'x' || checksum WHERE version = 1`),
			repair: set(`UPDATE box.migration SET checksum = substr(checksum, 2) WHERE version = 1`),
		},
		{name: "moved", check: "moved", severity: ops.Critical, word: "from another server", provoke: set(`UPDATE box.outbox_info SET cluster = 1`), repair: adopt},
		{name: "half repaired", check: "moved", severity: ops.Critical, word: "was interrupted", provoke: set(`UPDATE box.outbox_info SET reset_xid = 9223372036854775807`), repair: adopt},
		{name: "sequence with a cache", check: "sequence", severity: ops.Critical, word: "in order", provoke: set(`ALTER SEQUENCE box.outbox_seq CACHE 10`)},
		{name: "sequence that cycles", check: "sequence", severity: ops.Critical, word: "in order", provoke: set(`ALTER SEQUENCE box.outbox_seq CYCLE`)},
		{name: "sequence behind", check: "sequence", severity: ops.Critical, word: "is at", repair: adopt, provoke: func(d *db, o *owner) {
			d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', 'k' FROM generate_series(1, 10)`)
			d.exec(`SELECT setval('box.outbox_seq', 3)`)
		}},
		{name: "sequence that ends", check: "sequence", severity: ops.Warning, word: "given out", provoke: set(`ALTER SEQUENCE box.outbox_seq AS integer MAXVALUE 2147483647 RESTART 1900000000`)},
		{name: "unlogged table", check: "unlogged", severity: ops.Critical, word: "unlogged", provoke: set(`ALTER TABLE box.parked SET UNLOGGED`)},
		{name: "unlogged sequence", check: "unlogged", severity: ops.Critical, word: "unlogged", provoke: set(`ALTER SEQUENCE box.outbox_seq SET UNLOGGED`)},
		{name: "xid without its default", check: "columns", severity: ops.Critical, word: "column xid", provoke: set(`ALTER TABLE box.outbox ALTER COLUMN xid SET DEFAULT '3'`)},
		{name: "seq drawn too early", check: "columns", severity: ops.Critical, word: "column seq", provoke: set(`ALTER TABLE box.outbox ALTER COLUMN seq SET DEFAULT nextval('box.outbox_seq')`)},
		{name: "other number of lanes", check: "columns", severity: ops.Critical, word: "column lane", provoke: set(`UPDATE box.outbox_info SET lanes = 5`), repair: set(`UPDATE box.outbox_info SET lanes = 4`)},
		{name: "index missing", check: "indexes", severity: ops.Critical, word: "outbox_xid", provoke: set(`DROP INDEX box.outbox_xid`)},
		{name: "partial index missing", check: "indexes", severity: ops.Critical, word: "parked_queue", provoke: set(`DROP INDEX box.parked_queue`)},
		{name: "primary key missing", check: "indexes", severity: ops.Critical, word: "progress_pkey", provoke: set(`ALTER TABLE box.progress DROP CONSTRAINT progress_pkey`)},
		{
			name: "index invalid", check: "indexes", severity: ops.Warning, word: "invalid",
			provoke: set(`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'box.outbox_xid'::regclass`),
		},
		{name: "constraint unproven", check: "constraints", severity: ops.Warning, word: "never validated", provoke: func(d *db, _ *owner) {
			d.exec(`ALTER TABLE box.outbox DROP CONSTRAINT version_must_not_be_negative, ADD CONSTRAINT version_must_not_be_negative CHECK (version >= 0) NOT VALID`)
		}},
		{
			name: "constraint missing", check: "constraints", severity: ops.Warning, word: "topic_must", provoke: set(`ALTER TABLE box.outbox DROP CONSTRAINT topic_must_be_1_to_255_bytes`),
			repair: set(`ALTER TABLE box.outbox ADD CONSTRAINT topic_must_be_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255)`),
		},
		{
			name: "foreign trigger", check: "triggers", severity: ops.Warning, word: "not the outbox's own",
			provoke: set(`CREATE TRIGGER spy BEFORE UPDATE ON box.outbox FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`),
		},
		{
			name: "strict topic without its trigger", check: "strict-keys", severity: ops.Critical, word: "not numbered",
			provoke: set(`INSERT INTO box.strict_topic (topic) VALUES ('it''s')`),
		},
		{name: "rule", check: "triggers", severity: ops.Critical, word: "rule", provoke: set(`CREATE RULE away AS ON INSERT TO box.outbox DO INSTEAD NOTHING`)},
		{name: "row disabled from vacuum", check: "vacuum", severity: ops.Warning, word: "alone", provoke: set(`ALTER TABLE box.progress SET (autovacuum_enabled = off)`)},
		{name: "dead rows", check: "vacuum", severity: ops.Warning, word: "dead rows beside about", req: ops.ExamineRequest{Limits: ops.Limits{Dead: 1000}}, provoke: func(d *db, _ *owner) {
			d.exec(`ALTER TABLE box.running SET (autovacuum_enabled = off)`)
			d.exec(`INSERT INTO box.running SELECT g, '{}' FROM generate_series(1, 2000) g`)
			d.exec(`DELETE FROM box.running`)
			d.untilCount(`SELECT count(*) FROM pg_stat_all_tables WHERE relid = 'box.running'::regclass AND n_dead_tup >= 2000`)
		}},
		{name: "bloat", check: "vacuum", severity: ops.Warning, word: "MiB for about", req: ops.ExamineRequest{Limits: ops.Limits{Bloat: 1 << 20}}, provoke: func(d *db, _ *owner) {
			d.exec(`ALTER TABLE box.running SET (autovacuum_enabled = off)`)
			d.exec(`INSERT INTO box.running SELECT g, '{}' FROM generate_series(1, 40000) g`)
			d.exec(`DELETE FROM box.running`)
			d.untilCount(`SELECT count(*) FROM pg_stat_all_tables WHERE relid = 'box.running'::regclass AND n_dead_tup >= 40000`)
		}},
	}
}

// untilCount waits until a count is not zero: the server publishes its statistics late.
func (d *db) untilCount(sql string) {
	d.Helper()
	deadline := time.Now().Add(time.Minute)
	for d.count(sql) == 0 {
		if time.Now().After(deadline) {
			d.Fatalf("never: %s", sql)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// oneByOne lets one outbox suffer from everything in turn: each ailment is gone
// when its fix was done.
func oneByOne(t *testing.T, ailments []ailment) {
	t.Helper()
	trap(t, func(d *db, o *owner) {
		for _, a := range ailments {
			d.Run(strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
				d := &db{T: t, pool: d.pool, schema: d.schema, lanes: d.lanes}
				a.suffer(d, o)
			})
		}
	})
}

func TestDoctorFindsWhatIsWrongWithTheSchema(t *testing.T) { oneByOne(t, schemaAilments()) }

// A relay's role lacks something, or a writer has too much.
//
// Promises: C
func TestDoctorFindsWhoMayTooMuchOrTooLittle(t *testing.T) {
	self := func(d *db) *pgstore.Store {
		return pgstore.New(d.as(d.relayRole()), &pgstore.Options{Schema: d.schema})
	}
	trap(t, func(d *db, o *owner) {
		d.role(d.relayRole())
		for _, a := range []ailment{
			{
				name: "table privilege", check: "privileges", severity: ops.Critical, word: "DELETE on relay",
				provoke: func(d *db, _ *owner) { d.exec(`REVOKE DELETE ON box.relay FROM ` + d.relayRole()) }, as: self,
			},
			{
				name: "sequence privilege", check: "privileges", severity: ops.Critical, word: "UPDATE on outbox_seq",
				provoke: func(d *db, _ *owner) { d.exec(`REVOKE UPDATE ON SEQUENCE box.outbox_seq FROM ` + d.relayRole()) }, as: self,
			},
			{
				name: "schema privilege", check: "privileges", severity: ops.Critical, word: "USAGE on the schema",
				provoke: func(d *db, _ *owner) { d.exec(`REVOKE USAGE ON SCHEMA "` + d.schema + `" FROM ` + d.relayRole()) }, as: self,
			},
			{
				name: "row security", check: "row-security", severity: ops.Critical, word: "hides rows",
				provoke: func(d *db, _ *owner) { d.exec(`ALTER TABLE box.outbox ENABLE ROW LEVEL SECURITY`) }, as: self,
			},
			{
				name: "sessions of others", check: "transactions", severity: ops.Warning, word: "may not see",
				provoke: func(d *db, _ *owner) {}, as: self,
			},
			{name: "writer is a member of the owner", check: "owner", severity: ops.Critical, word: "is a member of", provoke: func(d *db, _ *owner) {
				d.exec(`ALTER TABLE box.outbox OWNER TO ` + d.extraRole("owner"))
				d.exec(`GRANT INSERT (topic, key) ON box.outbox TO ` + d.extraRole("writer"))
				d.exec(`GRANT ` + d.extraRole("owner") + ` TO ` + d.extraRole("writer"))
			}},
			{name: "only the owner writes", check: "owner", severity: ops.Warning, word: "only", provoke: func(d *db, _ *owner) {
				d.exec(`ALTER ROLE ` + d.extraRole("owner") + ` LOGIN`)
				d.exec(`ALTER TABLE box.outbox OWNER TO ` + d.extraRole("owner"))
			}},
			{
				name: "writer sets numbers", check: "grants", severity: ops.Warning, word: "seq and xid",
				provoke: func(d *db, _ *owner) { d.exec(`GRANT INSERT ON box.outbox TO ` + d.extraRole("writer")) },
			},
			{
				name: "everybody writes", check: "grants", severity: ops.Warning, word: "everybody may set",
				provoke: func(d *db, _ *owner) { d.exec(`GRANT INSERT ON box.outbox TO PUBLIC`) },
			},
			{name: "writer reads", check: "grants", severity: ops.Warning, word: "read every payload", provoke: func(d *db, _ *owner) {
				d.exec(`GRANT SELECT, INSERT (topic, key) ON box.outbox TO ` + d.extraRole("writer"))
			}},
			{
				name: "writer changes", check: "grants", severity: ops.Warning, word: "UPDATE on the outbox",
				provoke: func(d *db, _ *owner) { d.exec(`GRANT UPDATE, TRUNCATE ON box.outbox TO ` + d.extraRole("writer")) },
			},
		} {
			d.Run(strings.ReplaceAll(a.name, " ", "-"), func(t *testing.T) {
				d := &db{T: t, pool: d.pool, schema: d.schema, lanes: d.lanes}
				a.req.Role = d.relayRole()
				a.suffer(d, o)
			})
		}
	})
}

func (d *db) relayRole() string { return strings.ToLower(d.schema) + "_relay" }

// extraRole makes a role that may nothing, once.
func (d *db) extraRole(what string) string {
	d.Helper()
	name := strings.ToLower(d.schema) + "_" + what
	if d.count(`SELECT count(*) FROM pg_roles WHERE rolname = '`+name+`'`) == 0 {
		d.exec(`CREATE ROLE ` + name)
		d.Cleanup(func() {
			for _, text := range []string{`REASSIGN OWNED BY ` + name + ` TO postgres`, `DROP OWNED BY ` + name, `DROP ROLE ` + name} {
				if _, err := d.pool.Exec(context.Background(), text); err != nil {
					d.Errorf("%s: %v", text, err)
				}
			}
		})
	}
	return name
}

// An outbox as docs/postgres.md makes it, with a relay at work, is in order: by
// the words of its owner and of the relay's own role.
func TestDoctorFindsNothingInAHealthyOutbox(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version, testserver.WithConfig("fsync = on", "full_page_writes = on"))
		d := &db{T: t, pool: newPool(t, pg.URL), schema: "healthy", lanes: 4}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
			t.Fatal(err)
		}
		d.role("carrier")
		d.exec(`GRANT pg_read_all_stats TO carrier; CREATE ROLE clerk LOGIN; GRANT USAGE ON SCHEMA healthy TO clerk;
			GRANT INSERT (topic, key, type, payload) ON healthy.outbox TO clerk; GRANT USAGE ON SEQUENCE healthy.outbox_seq TO clerk`)
		s := pgstore.New(d.as("carrier"), &pgstore.Options{Schema: d.schema})
		o := &owner{db: d, store: s, boot: "a", page: 100}
		o.lease()
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k' || g % 7, g::text FROM generate_series(1, 100) g`)
		if got := o.drain(); len(got) != 100 {
			t.Fatalf("%d delivered", len(got))
		}
		for by, s := range map[string]*pgstore.Store{"owner": d.store("main"), "relay": s} {
			found, err := s.Office().Doctor.Examine(t.Context(), ops.ExamineRequest{Role: "carrier", Again: time.Millisecond, Timeout: 30 * time.Second, Limits: ops.Limits{Skew: time.Minute}})
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, f := range found {
				seen[f.Check] = true
				if f.Severity != ops.OK || f.What == "" {
					t.Errorf("by the %s: %s %s: %s", by, f.Severity, f.Check, f.What)
				}
			}
			if len(seen) < 30 {
				t.Errorf("by the %s: %d checks were made", by, len(seen))
			}
		}
	})
}

// Without an outbox, or without any right to look, doctor reports it and does not fail.
func TestDoctorSeesLittle(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		none := empty(t, version, 4)
		if f := none.ill(none.examine(none.store("main"), ops.ExamineRequest{}, "schema"), "has no outbox"); f == nil || f.Fix != "postrider migrate" {
			t.Errorf("without an outbox: %+v", f)
		}
		d := fresh(t, version, 4)
		name := d.extraRole("nobody")
		d.exec(`ALTER ROLE ` + name + ` LOGIN`)
		found, err := pgstore.New(d.as(name), &pgstore.Options{Schema: d.schema}).Office().Doctor.Examine(t.Context(), ops.ExamineRequest{})
		if err != nil {
			t.Fatal(err)
		}
		unseen := 0
		for _, f := range found {
			if strings.Contains(f.What, "this check may not look") {
				unseen++
				if f.Severity != ops.Warning || f.Fix == "" {
					t.Errorf("%+v", f)
				}
			}
		}
		missing := d.ill(found, "lacks")
		if missing == nil || missing.Severity != ops.Critical || unseen == 0 && d.ill(found, "cannot be read") == nil {
			t.Errorf("%d checks could not look, privileges: %+v", unseen, missing)
		}
	})
}

// A check that hangs is a finding, and keeps no other from being made.
func TestDoctorWaitsForNobody(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		hog := d.begin()
		d.do(hog, `LOCK TABLE box.parked IN ACCESS EXCLUSIVE MODE`)
		s := d.store("main")
		req := ops.ExamineRequest{Timeout: 2 * time.Second}
		if f := d.ill(d.examine(s, req, "parked"), "no answer within"); f == nil {
			t.Error("the check that hangs is not told")
		}
		if found := d.examine(s, req, "requests"); found[0].Severity != ops.OK {
			t.Errorf("the check after it: %+v", found)
		}
	})
}
