package storetest

import (
	"context"
	"testing"

	"github.com/postrider/postrider/store"
)

// MigratorCase is one rule of a [store.Migrator]. Run gets a migrator of an
// empty database.
type MigratorCase struct {
	Name    string
	Promise string
	Run     func(ctx context.Context, m store.Migrator) error
}

// RunMigrator runs every migrator case as a subtest, each in an empty database.
func RunMigrator(t *testing.T, newMigrator func(t *testing.T) store.Migrator) {
	t.Helper()
	for _, c := range MigratorCases() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Run(t.Context(), newMigrator(t)); err != nil {
				t.Errorf("%v\nbroken promise: %s", err, c.Promise)
			}
		})
	}
}

// MigratorCases returns every case of the migrator suite.
func MigratorCases() []MigratorCase { return nil }
