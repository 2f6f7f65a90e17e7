package promises

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/postrider/postrider/broker"
)

// lines keeps what relays log at Info and above.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) logger() *slog.Logger { return slog.New(handler{l}) }

// count returns how many lines begin with the text.
func (l *lines) count(prefix string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// with returns how many lines contain the text.
func (l *lines) with(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// alternate reports whether lines with the prefix first and lines with the prefix second
// alternate, from a first to a second one.
func (l *lines) alternate(first, second string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	want, other := first, second
	for _, line := range l.all {
		switch {
		case strings.HasPrefix(line, want):
			want, other = other, want
		case strings.HasPrefix(line, other):
			return false
		}
	}
	return want == first
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

type handler struct{ to *lines }

func (h handler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (h handler) WithAttrs([]slog.Attr) slog.Handler               { return h }
func (h handler) WithGroup(string) slog.Handler                    { return h }
func (h handler) Handle(_ context.Context, rec slog.Record) error {
	line := rec.Level.String() + " " + rec.Message
	rec.Attrs(func(a slog.Attr) bool { line += fmt.Sprintf(" %s=%v", a.Key, a.Value); return true })
	h.to.mu.Lock()
	defer h.to.mu.Unlock()
	h.to.all = append(h.to.all, line)
	return nil
}

// memory is a sink that accepts every message.
type memory struct {
	mu  sync.Mutex
	got []string
}

func (*memory) Info() broker.Info { return broker.Info{Name: "memory"} }

func (m *memory) Deliver(_ context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range msgs {
		m.got = append(m.got, string(msgs[i].Payload))
	}
	return nil
}

func (m *memory) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.got)
}

func (m *memory) arrived() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.got...)
}

func (m *memory) has(payload string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.got {
		if p == payload {
			return true
		}
	}
	return false
}

// counted is a sink that counts its calls and their results.
type counted struct {
	broker.Sink
	calls, failed atomic.Int64
	classes       [broker.ClassUnknown + 1]atomic.Int64 // by class of the failures
	turns         atomic.Int64                          // calls with an acknowledgement after a call with a rejection
	rejects       atomic.Bool                           // the last decisive result was a rejection
}

func (c *counted) Deliver(ctx context.Context, batch broker.Batch) []error {
	c.calls.Add(1)
	errs := c.Sink.Deliver(ctx, batch)
	if errs != nil {
		c.failed.Add(1)
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, broker.ErrNotTried) {
			c.classes[broker.Classify(err).Class].Add(1)
		}
	}
	if slices.Contains(errs, nil) || errs == nil {
		if c.rejects.Swap(false) {
			c.turns.Add(1)
		}
	}
	if slices.ContainsFunc(errs, func(err error) bool { e := broker.Classify(err); return e != nil && e.Class == broker.ClassRejected }) {
		c.rejects.Store(true)
	}
	return errs
}

// rounds is how often every lane has had a call that failed, since so many had:
// each may have left a window in the broker.
func (c *counted) rounds(since int64) int { return int(c.failed.Load()-since)/lanes + 1 }
