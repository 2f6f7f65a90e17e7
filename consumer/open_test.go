package consumer

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/seal"
)

// opener returns the result that the message's payload names.
type opener struct{ back time.Time }

func (o *opener) Open(_ context.Context, m postrider.Message) (postrider.Message, error) {
	switch string(m.Payload) {
	case "erased":
		return postrider.Message{}, &seal.KeyError{ID: "k", Err: seal.ErrErased}
	case "tampered":
		return postrider.Message{}, fmt.Errorf("seal: %w", seal.ErrTampered)
	case "unknown":
		return postrider.Message{}, &seal.KeyError{ID: "k", Err: seal.ErrUnknownKey}
	}
	if time.Now().Before(o.back) {
		return postrider.Message{}, &seal.KeyError{ID: "k", Err: errors.New("the key server is away")}
	}
	m.Payload = []byte("open " + string(m.Payload))
	return m, nil
}

// ledger is a database that records the statements of the inbox and their values.
type ledger struct {
	yes
	noted *[]string
}

func (ledger) Dialect() dialect.Dialect { return dialect.Postgres }

func (l ledger) Transact(_ context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	return fn(nil, l)
}

func (l ledger) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	*l.noted = append(*l.noted, fmt.Sprintf("%.20s %s", query, args))
	return l.yes.ExecContext(ctx, query, args...)
}

// openOnce runs a consumer over one delivery and returns the outcome.
func openOnce(t *testing.T, payload string, opts *Options) (handled []string, noted, log string, src *again) {
	t.Helper()
	var out bytes.Buffer
	var lines []string
	src = &again{ready: make(chan broker.Delivery, 1)}
	opts.Name, opts.Logger = "c", slog.New(slog.NewTextHandler(&out, nil))
	c := New[*sql.Tx](src, ledger{noted: &lines}, opts)
	c.HandleMessage("a", func(_ context.Context, _ *sql.Tx, m postrider.Message) error {
		handled = append(handled, string(m.Payload))
		return nil
	})
	Handle(c, "json", func(context.Context, *sql.Tx, int) error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	m := postrider.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "t", Type: "a", Payload: []byte(payload)}
	if payload == "json" {
		m.Type, m.Headers = "json", map[string]string{seal.HeaderAlgorithm: seal.Algorithm}
	}
	if payload == "" {
		m.Headers = map[string]string{postrider.ErasedHeader: "2026-11-21T20:00:00Z"}
	}
	if payload == "claimed" {
		m.Payload, m.Headers = nil, map[string]string{envelope.DataRef: "postrider:s/1/2/" + m.ID + "?bytes=1&sha256=00"}
	}
	src.ready <- broker.Delivery{Attempt: 1, Message: m}
	time.Sleep(time.Hour) // in the bubble
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return handled, strings.Join(lines, "\n"), out.String(), src
}

// Promises: C
func TestOpener(t *testing.T) {
	for _, c := range []struct {
		payload string
		opts    Options
		handled []string
		dead    bool
		log     string
	}{
		{"secret", Options{Opener: &opener{}}, []string{"open secret"}, false, ""},
		{"erased", Options{Opener: &opener{}}, nil, false, "erased"},
		{"", Options{}, nil, false, "erased"},
		{"tampered", Options{Opener: &opener{}}, nil, true, "dead letter"},
		{"unknown", Options{Opener: &opener{}, MaxAttempts: 1}, nil, true, "unknown key"},
		{"json", Options{MaxAttempts: 1}, nil, true, "set Options.Opener"},
		{"claimed", Options{MaxAttempts: 1}, nil, true, "set Options.Opener to a claim.Opener"},
	} {
		t.Run("of "+c.payload, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handled, noted, log, src := openOnce(t, c.payload, &c.opts)
				if !slices.Equal(handled, c.handled) || src.acked != 1 {
					t.Errorf("handled %q, acknowledged %d, want %q and 1", handled, src.acked, c.handled)
				}
				if dead := strings.Contains(log, "dead letter"); dead != c.dead || !strings.Contains(log, c.log) {
					t.Errorf("dead %v, want %v; log\n%s", dead, c.dead, log)
				}
				if strings.Contains(noted, "open secret") || strings.Contains(log, "open secret") {
					t.Errorf("what was opened was kept:\n%s\n%s", noted, log)
				}
			})
		})
	}
}

// TestWhatIsGivenMayPanic: a panic of a function of the options counts as a failure of the
// handler, and ends neither the process nor the consumer.
//
// Promises: S
func TestWhatIsGivenMayPanic(t *testing.T) {
	bad := func(m string) { panic("no " + m) }
	for name, opts := range map[string]Options{
		"version": {Version: func(m postrider.Message) int64 { bad(m.ID); return 0 }, MaxAttempts: 1},
		"order":   {Order: func(topic string) inbox.Order { bad(topic); return 0 }, MaxAttempts: 1},
		"opener":  {Opener: opening(func(m postrider.Message) { bad(m.ID) }), MaxAttempts: 1},
	} {
		for _, opts.Batch = range []int{1, 10} {
			t.Run(fmt.Sprint(name, " ", opts.Batch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					handled, _, log, src := openOnce(t, "secret", &opts)
					if len(handled) != 0 || src.acked != 1 || !strings.Contains(log, "dead letter") {
						t.Errorf("handled %q, acknowledged %d", handled, src.acked)
					}
					if !strings.Contains(log, "stack=") || !strings.Contains(log, "panicked with a string") || !strings.Contains(log, "msg=panicked") || strings.Contains(log, "no 0189") {
						t.Errorf("the log says\n%s", log)
					}
				})
			})
		}
	}
}

// opening is an Opener.
type opening func(m postrider.Message)

func (o opening) Open(_ context.Context, m postrider.Message) (postrider.Message, error) {
	o(m)
	return m, nil
}

// TestOddIDs: a message whose id the inbox cannot store is dead, not an outage.
//
// Promises: S
func TestOddIDs(t *testing.T) {
	for _, id := range []string{"", "zero\x00byte", "\xff", strings.Repeat("x", 256)} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			var lines []string
			src := &again{ready: make(chan broker.Delivery, 1)}
			c := New[*sql.Tx](src, ledger{noted: &lines}, &Options{Name: "c", Logger: slog.New(slog.NewTextHandler(&log, nil))})
			c.HandleMessage("a", func(context.Context, *sql.Tx, postrider.Message) error { t.Error("the handler ran"); return nil })
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			src.ready <- broker.Delivery{Attempt: 1, Origin: "t/1@2", Message: postrider.Message{ID: id, Topic: "t", Type: "a"}}
			time.Sleep(time.Hour) // in the bubble
			cancel()
			if err := <-done; err != nil || src.acked != 1 || !strings.Contains(log.String(), "dead letter") || !strings.Contains(strings.Join(lines, ""), "undecodable:t/1@2:") {
				t.Errorf("id %q: acknowledged %d, %v\n%s\n%s", id, src.acked, err, &log, lines)
			}
		})
	}
}

// TestOddOrigins: a position that is no text, or a long one, does not spoil the id of a
// record without one, and two positions do not become one.
//
// Promises: S
func TestOddOrigins(t *testing.T) {
	long := strings.Repeat("t", 249) + "/1@"
	var ids []string
	for _, origin := range []string{long + "1", long + "2", "zero\x00byte", "\xff"} {
		synctest.Test(t, func(t *testing.T) {
			var lines []string
			src := &again{ready: make(chan broker.Delivery, 1)}
			c := New[*sql.Tx](src, ledger{noted: &lines}, &Options{Name: "c", Logger: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			src.ready <- broker.Delivery{Attempt: 1, Origin: origin, Message: postrider.Message{Topic: "t"}}
			time.Sleep(time.Hour) // in the bubble
			cancel()
			if err := <-done; err != nil || src.acked != 1 {
				t.Errorf("origin %q: acknowledged %d, %v\n%s", origin, src.acked, err, lines)
			}
			_, id, _ := strings.Cut(strings.Join(lines, " "), "undecodable:")
			id, _, _ = strings.Cut(id, " ")
			if id = "undecodable:" + id; !fit(id) || slices.Contains(ids, id) {
				t.Errorf("origin %q has the id %q, after %q", origin, id, ids)
			}
			ids = append(ids, id)
		})
	}
}

// TestKeysOutOfReach: unreachable keys cost no attempt, and are logged once.
func TestKeysOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handled, _, log, src := openOnce(t, "secret", &Options{Opener: &opener{back: time.Now().Add(10 * time.Minute)}, MaxAttempts: 2})
		if !slices.Equal(handled, []string{"open secret"}) || src.acked != 1 || src.tries < 5 {
			t.Errorf("handled %q after %d tries", handled, src.tries)
		}
		if strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, "keys reachable again") {
			t.Errorf("the log says\n%s", log)
		}
	})
}
