package consumer

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
)

// claims is a database that has claimed some ids and counts its transactions.
type claims struct {
	ledger
	mu           *sync.Mutex
	has          []string
	transactions *int
	away         bool
}

func (d claims) Transact(_ context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	*d.transactions++
	if d.away {
		return errors.New("no database")
	}
	return fn(nil, d)
}

func (d claims) QueryRow(_ context.Context, _ string, args ...any) inbox.Row {
	return claimed{d.has, args}
}

// claimed answers with the claimed ids among those in the query.
type claimed struct {
	has  []string
	args []any
}

func (c claimed) Scan(dest ...any) error {
	answer, ok := dest[0].(*string)
	if !ok {
		return nil
	}
	var asked, there []string
	if err := json.Unmarshal([]byte(c.args[1].(string)), &asked); err != nil {
		return err
	}
	for _, id := range asked {
		if slices.Contains(c.has, id) {
			there = append(there, id)
		}
	}
	text, err := json.Marshal(there)
	*answer = string(text)
	return err
}

// filter is a Filter with scripted answers.
type filter struct {
	seen  func(id string) bool
	err   error
	hangs bool
	short bool
	asked int
}

func (f *filter) Seen(ctx context.Context, ids []string) ([]bool, error) {
	f.asked++
	if f.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if f.short {
		return nil, nil
	}
	out := make([]bool, len(ids))
	for i, id := range ids {
		out[i] = f.seen(strings.TrimPrefix(id, "c/"))
	}
	return out, f.err
}

// TestFilter: the filter's answer alone never drops a message, nor keeps
// one; its right answers save transactions.
//
// Promises: E
func TestFilter(t *testing.T) {
	all := func(string) bool { return true }
	none := func(string) bool { return false }
	for _, c := range []struct {
		name         string
		filter       *filter
		has          []string // in the inbox
		handled      string
		transactions int
	}{
		{"it remembers what the inbox has", &filter{seen: all}, []string{"0", "1", "2", "3"}, "", 1},
		{"it remembers what the inbox has not", &filter{seen: all}, nil, "0 1 2 3", 1 + 4},
		{"some of both", &filter{seen: all}, []string{"1", "2"}, "0 3", 1 + 2},
		{"it remembers nothing", &filter{seen: none}, []string{"1"}, "0 1 2 3", 4}, // claims always say fresh here
		{"it fails", &filter{seen: all, err: errors.New("gone")}, []string{"1"}, "0 1 2 3", 4},
		{"it hangs", &filter{hangs: true}, []string{"1"}, "0 1 2 3", 4},
		{"it answers for fewer", &filter{short: true}, []string{"1"}, "0 1 2 3", 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var noted []string
				transactions := 0
				db := claims{ledger: ledger{noted: &noted}, mu: &sync.Mutex{}, has: c.has, transactions: &transactions}
				src := &script{batches: make(chan []broker.Delivery, 1)}
				cons := New[*sql.Tx](src, db, &Options{Name: "c", Concurrency: 1, Filter: c.filter})
				var handled []string
				cons.HandleMessage("", func(_ context.Context, _ *sql.Tx, m postrider.Message) error {
					handled = append(handled, m.ID)
					return nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- cons.Run(ctx) }()
				var ds []broker.Delivery
				for i := range 4 {
					d := delivery(fmt.Sprint(i), "k")
					d.Attempt = 1
					ds = append(ds, d)
				}
				time.Sleep(time.Second) // the first look into the stash is over
				synctest.Wait()
				transactions = 0
				src.batches <- ds
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
				if got := strings.Join(handled, " "); got != c.handled {
					t.Errorf("handled %q, want %q", got, c.handled)
				}
				if transactions != c.transactions {
					t.Errorf("%d transactions, want %d", transactions, c.transactions)
				}
				if want := []string{"ack 0", "ack 1", "ack 2", "ack 3"}; !slices.Equal(sorted(src.verdicts), want) {
					t.Errorf("verdicts %q", src.verdicts)
				}
				if n := cons.Stats().Duplicates; int(n) != 4-len(handled) {
					t.Errorf("%d duplicates are counted, %d are handled", n, len(handled))
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// TestFilterRests: a silent filter delays a Receive only rarely, and is logged
// once.
func TestFilterRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var noted []string
		transactions := 0
		f := &filter{hangs: true, seen: func(string) bool { return true }}
		db := claims{ledger: ledger{noted: &noted}, mu: &sync.Mutex{}, transactions: &transactions}
		c := New[*sql.Tx](&script{}, db, &Options{Name: "c", Filter: f, Logger: slog.New(slog.NewTextHandler(&out, nil))})
		s := &screen[*sql.Tx]{c: c}
		ds := []broker.Delivery{delivery("1", "k")}
		begin := time.Now()
		for range 1000 {
			s.known(t.Context(), ds)
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(begin); f.asked > 8 || took > 101*time.Second {
			t.Errorf("asked %d times; 100 s became %v", f.asked, took)
		}
		f.hangs = false
		time.Sleep(filterRestMax)
		if s.known(t.Context(), ds) == nil {
			t.Error("a filter that answers again is not asked")
		}
		if n := strings.Count(out.String(), "level=WARN"); n != 1 || !strings.Contains(out.String(), "filter reachable again") {
			t.Errorf("%d warnings; log\n%s", n, out.String())
		}
		db.away = true
		s = &screen[*sql.Tx]{c: New[*sql.Tx](&script{}, db, &Options{Name: "c", Filter: f})}
		if known := s.known(t.Context(), ds); known != nil {
			t.Errorf("without a database %v are known", known)
		}
		f.asked = 0
		s.known(t.Context(), []broker.Delivery{{Err: errors.New("unreadable")}, delivery("", ""), delivery("a\x00", "")})
		if f.asked > 0 {
			t.Error("the filter is asked for what nobody can claim")
		}
	})
}
