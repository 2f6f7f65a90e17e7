package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// A process of several relays ends when all of them wait after a failure, and not
// while one tries again: that one may wait for a database that comes back.
func TestFleetEndsWhenNobodyTries(t *testing.T) {
	a, b := &unit{name: "a"}, &unit{name: "b"}
	f := &fleet{units: []*unit{a, b}, failed: map[*unit]error{}}
	refused := errors.New("refused")
	f.tries(a)
	f.tries(b)
	if f.fails(a, refused) {
		t.Error("over although b runs")
	}
	f.tries(a)
	if f.fails(b, refused) || f.verdict() != nil {
		t.Error("over although a tries again")
	}
	if !f.fails(a, refused) {
		t.Error("both wait, and the process continues")
	}
	f.tries(b)
	if err := f.verdict(); err == nil || strings.Count(err.Error(), "refused") != 2 {
		t.Errorf("%v does not say why each ended", err)
	}
}

// absent is a store without its outbox.
type absent struct{ store.Store }

func (absent) Lease(context.Context, store.LeaseRequest) (store.Grant, error) {
	return store.Grant{}, &store.SchemaError{Schema: "late", Want: 1}
}

// nothing is the schema of an outbox that nobody has made.
type nothing struct{ ops.Migrator }

func (nothing) SchemaVersion(context.Context) (have, want int, err error) { return 0, 1, nil }

// A relay whose outbox is missing is logged as started once, not before each try.
func TestAMissingOutboxStartsNoRelayAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text lockedText
		log := slog.New(slog.NewTextHandler(&text, nil))
		st := absent{memstore.New(nil)}
		late := &unit{
			name: "late", log: log, store: &open.Outbox{Store: st, Office: &ops.Office{Migrator: nothing{}}},
			relay: relay.New(st, membroker.New(nil).Sink(), &relay.Options{Logger: log}),
		}
		late.sink = membroker.New(nil).Sink()
		f := &fleet{units: []*unit{late, {name: "well"}}, failed: map[*unit]error{}, end: func() {}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f.run(ctx, late)
		if n := strings.Count(text.String(), `"relay started"`); n != 1 {
			t.Errorf("started %d times, want once:\n%s", n, text.String())
		}
	})
}
