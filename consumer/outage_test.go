package consumer

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
)

// flaky is a database that is unreachable until a time.
type flaky struct{ back time.Time }

func (*flaky) Dialect() dialect.Dialect { return dialect.Postgres }

func (f *flaky) Transact(_ context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	if time.Now().Before(f.back) {
		return errors.New("no database")
	}
	return fn(nil, yes{})
}

// yes is a transaction in which every statement changes one row.
type yes struct{}

func (yes) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	return driver.RowsAffected(1), nil
}
func (yes) QueryRow(context.Context, string, ...any) inbox.Row { return zeros{} }
func (yes) Commit() error                                      { return nil }
func (yes) Rollback() error                                    { return nil }

// zeros answers every query with zeros.
type zeros struct{}

func (zeros) Scan(...any) error { return nil }

// again delivers every message that was given back after its delay.
type again struct {
	ready chan broker.Delivery
	acked int
	tries int
}

func (*again) Info() broker.SourceInfo                         { return broker.SourceInfo{Name: "again"} }
func (*again) Extend(context.Context, []broker.Delivery) error { return nil }

func (s *again) Receive(ctx context.Context, _ int) ([]broker.Delivery, error) {
	select {
	case d := <-s.ready:
		s.tries++
		return []broker.Delivery{d}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *again) Settle(_ context.Context, vs []broker.Verdict) error {
	for _, v := range vs {
		if v.Ack {
			s.acked++
			continue
		}
		time.AfterFunc(v.Delay, func() { s.ready <- v.Delivery })
	}
	return nil
}

// TestDatabaseOutageIsToldOnce: an outage is logged once when it begins and once when it
// ends, without a busy loop, whatever the number of messages in hand.
func TestDatabaseOutageIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 40
		src := &again{ready: make(chan broker.Delivery, messages)}
		for i := range messages {
			src.ready <- broker.Delivery{Attempt: 1, Message: postrider.Message{ID: string(rune('A' + i)), Topic: "t", Type: "x"}}
		}
		var log bytes.Buffer
		c := New(src, DB[*sql.Tx](&flaky{back: time.Now().Add(5 * time.Minute)}), &Options{
			Name: "billing", Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		c.HandleMessage("x", func(context.Context, *sql.Tx, postrider.Message) error { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(6 * time.Minute) // in the bubble
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if src.acked != messages {
			t.Errorf("%d of %d messages acknowledged after the outage", src.acked, messages)
		}
		failed, back := strings.Count(log.String(), "part=database"), strings.Count(log.String(), "database reachable again")
		if failed != 1 || back != 1 {
			t.Errorf("%d lines about the beginning of the outage and %d about its end, want one each:\n%s", failed, back, &log)
		}
		if most := messages * 60; src.tries > most {
			t.Errorf("%d tries of %d messages in 5 min, want at most %d", src.tries, messages, most)
		}
	})
}
