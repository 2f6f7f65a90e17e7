package pgstore_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// During a rolling upgrade the schema is newer than the relays that are not yet
// replaced: they work on when the migration says that they may, and end when it
// says that they may not.
func TestNewerSchema(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.migration (version, name, checksum, compatible) VALUES ($1, 'future', '', $2)`, pgstore.Version+1, pgstore.Version)
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'a')`)
		o.want("a")
		o.lease()
		have, want, err := o.store.Office().Migrator.SchemaVersion(t.Context())
		if err != nil || have != pgstore.Version+1 || want != have {
			t.Errorf("version %d, want %d, %v", have, want, err)
		}
		if steps, err := o.store.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil || len(steps) != 0 {
			t.Errorf("migrate: %v, %v", steps, err)
		}
		_, err = o.store.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Target: -1})
		wantIs(t, err, store.ErrSchema)
		d.exec(`UPDATE box.migration SET compatible = version WHERE name = 'future'`)
		_, err = o.store.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
		wantIs(t, err, store.ErrSchema)
		if have, want, err = o.store.Office().Migrator.SchemaVersion(t.Context()); err != nil || have == want {
			t.Errorf("version %d, want %d, %v", have, want, err)
		}
	})
}

// An outbox of the first version may have been made before migrations said
// which programs they suit.
func TestFirstSchemaWithoutCompatible(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := empty(t, version, 4)
		s := d.store("main")
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Target: 1}); err != nil {
			t.Fatal(err)
		}
		d.exec(`ALTER TABLE box.migration DROP COLUMN compatible`)
		if have, _, err := s.Office().Migrator.SchemaVersion(t.Context()); err != nil || have != 1 {
			t.Errorf("version %d, %v", have, err)
		}
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{}); err != nil {
			t.Error(err)
		}
		mustLease(t, s, store.LeaseRequest{BootID: "a", TTL: time.Minute})
	})
}

// Every migration but the first names the programs that it suits, and the package
// needs the newest.
func TestMigrationsAreNumberedAndSayWhomTheySuit(t *testing.T) {
	names, err := filepath.Glob("internal/migrate/migrations/*.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	if len(names) != pgstore.Version {
		t.Errorf("%d migrations and version %d", len(names), pgstore.Version)
	}
	for i, name := range names {
		if n, err := strconv.Atoi(filepath.Base(name)[:4]); err != nil || n != i+1 {
			t.Errorf("%s is number %d", name, i+1)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(string(text), "\n")
		n, err := strconv.Atoi(strings.TrimPrefix(line, "-- compatible: "))
		if i > 0 && (err != nil || n < 1 || n > i+1) {
			t.Errorf("%s begins with %q, not with the oldest version that works beside it", name, line)
		}
	}
}
