package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// troubled is an outbox in partitions of which nobody makes any, and whose
// payloads go before their rows.
type troubled struct{ orderly }

func (troubled) Prune(_ context.Context, req ops.PruneRequest) (p ops.Pruned, err error) {
	if req.Payloads {
		p.Rows = 40
	}
	return p, nil
}

func (troubled) Partitions(context.Context) (ops.Partitions, error) {
	return ops.Partitions{List: make([]ops.Partition, 5), Room: 3 * ops.LowRoom}, nil
}

func (troubled) Tend(context.Context, ops.TendRequest) (ops.Tended, error) {
	return ops.Tended{}, errors.New("permission denied")
}

// Housekeeping that fails tells of the partitions as they are; one that another
// process has taken over tells of none.
func TestHousekeepingMetricsOfTrouble(t *testing.T) {
	k := newKeeper(t, troubled{}, &admin.KeeperOptions{OlderThan: time.Hour})
	if _, err := k.Sweep(t.Context()); err == nil {
		t.Error("the sweep did not fail")
	}
	serves := func(k *admin.Keeper) string {
		st := memstore.New(nil)
		m := newMetrics(st.Office().Admin, map[string]string{"pipe": "main"}, time.Second)
		m.of(relay.New(st, membroker.New(nil).Sink(), nil))
		m.keep(k, map[string]string{"relay": "shop"})
		w := httptest.NewRecorder()
		metricsHandler(seriesOf(m)).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Body.String()
	}
	for _, line := range []string{`postrider_partitions{relay="shop"} 5`, `postrider_partitions_ahead{relay="shop"} 0`, `postrider_partitions_alarm{relay="shop"} 1`} {
		if text := serves(k); !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%q is not served:\n%s", line, text)
		}
	}
	k = newKeeper(t, emptying{}, &admin.KeeperOptions{OlderThan: time.Hour, Payloads: time.Minute})
	if _, err := k.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := serves(k); !strings.Contains(text, `postrider_retention_emptied_total{relay="shop"} 40`) || !strings.Contains(text, `postrider_partitions{relay="shop"} 3`) {
		t.Error(text)
	}
	o := &taken{}
	k = newKeeper(t, o, &admin.KeeperOptions{OlderThan: time.Hour})
	for _, other := range []string{"", "another"} {
		o.runner = other
		if _, err := k.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if text := serves(k); strings.Contains(text, "postrider_partitions") {
		t.Error(text)
	}
}

// emptying has payloads to remove, in partitions that are in order.
type emptying struct{ orderly }

func (emptying) Prune(ctx context.Context, req ops.PruneRequest) (ops.Pruned, error) {
	return troubled{}.Prune(ctx, req)
}

// taken has another runner, once there is one.
type taken struct {
	orderly
	runner string
}

func (o *taken) Prune(context.Context, ops.PruneRequest) (ops.Pruned, error) {
	return ops.Pruned{Runner: o.runner}, nil
}

// Housekeeping that fails because the database is away adds no line of its own to
// that of the relay.
func TestHousekeepingInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		var away atomic.Bool
		away.Store(true)
		k := newKeeper(t, troubled{}, &admin.KeeperOptions{
			OlderThan: time.Hour, Every: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)), Told: away.Load,
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go k.Run(ctx)
		time.Sleep(time.Minute)
		const fails = "housekeeping failed"
		if strings.Contains(log.String(), fails) || k.Stats().Failed == "" {
			t.Errorf("log %q, want nothing of it; stats %q, want the reason", log.String(), k.Stats().Failed)
		}
		away.Store(false)
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), fails); n != 1 {
			t.Errorf("%d lines behind the outage, want 1:\n%s", n, log.String())
		}
	})
}

// letters are the dead letters of a pipe.
type letters struct{ ops.Orders }

// TestOneKeeperOfAnOutbox: the first relay of an outbox keeps its house, and discards the dead letters of its other
// pipes by their own age.
//
// Promises: G
func TestOneKeeperOfAnOutbox(t *testing.T) {
	of := func(outbox string, keep time.Duration) *unit {
		return &unit{outbox: outbox, keeps: &admin.KeeperOptions{KeepDead: keep}, store: &open.Outbox{Office: &ops.Office{Orders: letters{}}}}
	}
	a, b, c, other := of("shop", 0), of("shop", 2*time.Hour), of("shop", 0), of("billing", time.Hour)
	firsts := housekeepers([]*unit{a, b, other, c})
	if len(firsts) != 2 || firsts[0] != a || firsts[1] != other {
		t.Fatalf("%d outboxes have a keeper", len(firsts))
	}
	if a.keeps.KeepDead != 0 || len(a.keeps.Pipes) != 1 || a.keeps.Pipes[0].KeepDead != 2*time.Hour || a.keeps.Pipes[0].Orders != b.store.Orders || len(other.keeps.Pipes) != 0 {
		t.Errorf("the keepers have %+v and %+v", a.keeps, other.keeps)
	}
}

// housekeeping is what a keeper works with.
type housekeeping interface {
	ops.Retainer
	ops.Auditor
	ops.Partitioner
}

// newKeeper keeps house with what a test answers.
func newKeeper(t *testing.T, h housekeeping, o *admin.KeeperOptions) *admin.Keeper {
	t.Helper()
	k, err := admin.NewKeeper(&ops.Office{Retention: h, Books: h, Partitions: h, Empties: true}, o)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// lockedText is written by a logger and read by its test.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedText) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedText) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// silent is an outbox whose database answers no more when its lease is given back.
type silent struct{ ops.Retainer }

func (silent) Prune(ctx context.Context, req ops.PruneRequest) (p ops.Pruned, err error) {
	if req.Leave {
		<-ctx.Done()
		return p, ctx.Err()
	}
	return p, nil
}

func (silent) Tidy(context.Context, ops.TidyRequest) (t ops.Tidied, err error) { return t, nil }

// TestHousekeepingEndsTogether: the keepers of many outboxes end side by side. One after the
// other, those of databases that are silent would take longer than a service manager waits.
func TestHousekeepingEndsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var units []*unit
		for _, name := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
			units = append(units, &unit{
				outbox: name, store: &open.Outbox{Office: &ops.Office{Retention: silent{}}}, keeps: &admin.KeeperOptions{OlderThan: time.Hour},
				meter: &metrics{}, health: func() relay.Health { return relay.Health{} }, log: slog.New(slog.DiscardHandler),
			})
		}
		leave := keepHouse(t.Context(), units)
		time.Sleep(time.Minute)
		began := time.Now()
		if leave(); time.Since(began) > 2*time.Second {
			t.Errorf("the housekeeping of %d outboxes took %s to end", len(units), time.Since(began))
		}
	})
}

// TestUnitsCloseTogether: brokers and databases that do not answer a farewell are waited for
// once, not once per relay.
func TestUnitsCloseTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		units := make([]*unit, 26)
		for i := range units {
			units[i] = &unit{close: func() { time.Sleep(time.Second) }}
		}
		began := time.Now()
		if closeUnits(units); time.Since(began) > time.Second {
			t.Errorf("%d relays took %s to close", len(units), time.Since(began))
		}
	})
}
