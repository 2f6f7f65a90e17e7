package database

import (
	"slices"
	"testing"

	"github.com/postrider/postrider/bench/rows"
	"github.com/postrider/postrider/internal/testserver"
)

// Each store does what the workloads ask for; the figures mean nothing.
func TestStores(t *testing.T) {
	for _, name := range []string{Postgres, testserver.MariaDB10} {
		t.Run(name, func(t *testing.T) {
			if name == Postgres {
				if _, err := testserver.PostgresBin("15"); err != nil {
					testserver.GiveUp(t, err)
				}
			} else if err := testserver.MySQLPresent(name); err != nil {
				testserver.GiveUp(t, err)
			}
			ctx := t.Context()
			db, err := Start(ctx, name, "15")
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			before, err := db.Sample(ctx)
			if err != nil {
				t.Fatal(err)
			}
			const n = 1200
			if err := db.Fill(ctx, "bench", n); err != nil {
				t.Fatal(err)
			}
			after, err := db.Sample(ctx)
			if err != nil {
				t.Fatal(err)
			}
			log := Since(before.WAL, after.WAL)
			if log == nil {
				log = Since(before.Binlog, after.Binlog)
			}
			if log == nil || *log < n*256 {
				t.Errorf("the log of the server has %v bytes more, want %d at least", log, n*256)
			}
			if _, err := ReadAll(ctx, db.Server().URL); err != nil {
				t.Error(err)
			}
			if err := db.Owned(ctx); err == nil {
				t.Error("lanes have an owner, and no relay was started")
			}
			if err := db.Rewind(ctx); err != nil {
				t.Error(err)
			}
			twin, err := db.Twin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, table := range []string{db.Outbox(), twin} {
				if err := db.Insert(table, "bench")(ctx, rows.Keys); err != nil {
					t.Error(err)
				}
			}
			probes, end, err := db.Probes(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{Bare, One, Hundred} {
				if probes[name] == nil {
					t.Errorf("no probe %q", name)
				}
			}
			for name, p := range probes {
				if took, err := p.Run(ctx); err != nil || took <= 0 {
					t.Errorf("%s: %v, %v", name, took, err)
				}
			}
			end()
			effects(t, db)
			for _, how := range []string{"poll", "listen", "log"} {
				wakes(t, db, how)
			}
		})
	}
}

// wakes opens a store that learns of messages in that way, or is refused on MySQL.
func wakes(t *testing.T, db Database, how string) {
	t.Helper()
	url, err := db.Wake(t.Context(), how)
	if db.Server().Product != Postgres && how != "poll" {
		if err == nil {
			t.Errorf("wake %s was not refused", how)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	st, end, err := OpenStore(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if wake := st.Info().Wake; wake != nil && wake().Wanted != how {
		t.Errorf("the store of --wake %s says %q", how, wake())
	}
}

// effects counts what the handlers of a run did.
func effects(t *testing.T, db Database) {
	t.Helper()
	ctx := t.Context()
	if err := db.MakeEffects(ctx); err != nil {
		t.Fatal(err)
	}
	h, err := OpenHandler(ctx, db.Server().URL, "run", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	msgs := messages("bench")[:3]
	if err := h.Bare(ctx, slices.Concat(msgs, msgs[:1])); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.CheckThenAct(ctx, "another", nil); err != nil {
			t.Fatal(err)
		}
	}
	if all, distinct, err := db.CountEffects(ctx, "run"); err != nil || all != 5 || distinct != 4 {
		t.Errorf("%d effects of %d messages, %v; want 5 of 4", all, distinct, err)
	}
}
