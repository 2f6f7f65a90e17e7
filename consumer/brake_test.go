package consumer

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// TestBrake: while all handlers fail, only the first messages become dead letters. The
// others have their effect when the dependency is back, and the brake then allows
// the full number again.
//
// Promises: S
func TestBrake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages, concurrency, least = 60, 4, 5
		src := &again{ready: make(chan broker.Delivery, messages)}
		for i := range messages {
			src.ready <- broker.Delivery{Attempt: 1, Message: postrider.Message{ID: string(rune('A' + i)), Topic: "t", Type: "x"}}
		}
		var log bytes.Buffer
		c := New(src, DB[*sql.Tx](&flaky{}), &Options{
			Name: "billing", MaxAttempts: 1, Concurrency: concurrency, Brake: least, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		back := time.Now().Add(time.Hour)
		c.HandleMessage("x", func(context.Context, *sql.Tx, postrider.Message) error {
			if time.Now().Before(back) {
				return Permanent(errors.New("no such service"))
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(50 * time.Minute) // in the bubble
		if s := c.Stats(); !slices.Equal(s.Down, []string{"handlers"}) {
			t.Errorf("Down is %v while everything fails", s.Down)
		}
		time.Sleep(11 * time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		s := c.Stats()
		if s.Dead < least || s.Dead >= least+concurrency || s.Dead+s.Effects != messages || len(s.Down) != 0 {
			t.Errorf("%d of %d messages are dead and %d had their effect, want %d to %d dead; down: %v", s.Dead, messages, s.Effects, least, least+concurrency-1, s.Down)
		}
		if c.braked() {
			t.Error("the brake holds after an effect")
		}
		began, ended := strings.Count(log.String(), "part=handlers"), strings.Count(log.String(), "handlers recovered")
		if began != 1 || ended != 1 {
			t.Errorf("%d lines about the beginning and %d about the end, want one each", began, ended)
		}
	})
}
