package early

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/ahead"
	"github.com/postrider/postrider/store/internal/xids"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// about is the answer of a server that suits, with one value changed.
func about(change int, value string) []string {
	a := []string{"history", "4", "t"}
	for _, w := range words() {
		a = append(a, strconv.FormatInt(int64(hash([]byte(w))), 10))
	}
	if change >= 0 {
		a[change] = value
	}
	return a
}

// A stream whose keys another function puts into lanes, or whose texts are converted, sends nothing
// ahead, and neither does an answer that cannot be read.
//
// Promises: O
func TestAnotherHashSendsNothingAhead(t *testing.T) {
	for name, c := range map[string]struct {
		about []string
		ok    bool
	}{
		"ours":      {about(-1, ""), true},
		"encoding":  {about(2, "f"), false},
		"hash":      {about(4, "7"), false},
		"last hash": {about(len(words())+2, "7"), false},
		"lanes":     {about(1, "many"), false},
		"no lanes":  {about(1, "0"), false},
		"short":     {about(-1, "")[:4], false},
		"none":      {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			if err := l.opened(c.about); (err == nil) != c.ok {
				t.Errorf("opened: %v", err)
			}
			if got := l.sent(t, "history"); got != c.ok {
				t.Errorf("a row goes ahead: %v", got)
			}
		})
	}
}

// A row goes ahead only to a reader of the history that the stream tells, and none does once the stream
// has ended, or while one of its rows cannot be read.
//
// Promises: L, O
func TestRowsGoAheadInTheirHistory(t *testing.T) {
	for name, c := range map[string]struct {
		history string
		spoil   func(l *fakeLog)
		sent    bool
	}{
		"same":       {"history", func(*fakeLog) {}, true},
		"other":      {"another", func(*fakeLog) {}, false},
		"none":       {"", func(l *fakeLog) { l.identity = "" }, false},
		"closed":     {"history", func(l *fakeLog) { l.closed() }, false},
		"unreadable": {"history", func(l *fakeLog) { l.broken = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog()
			if err := l.opened(about(-1, "")); err != nil {
				t.Fatal(err)
			}
			c.spoil(l)
			if got := l.sent(t, c.history); got != c.sent {
				t.Errorf("a row goes ahead: %v, want %v", got, c.sent)
			}
		})
	}
}

// fakeLog is a log whose rows have a number alone.
type fakeLog struct {
	*Log
	broken bool
}

func newLog() *fakeLog {
	l := &fakeLog{}
	l.Log = New(func(row tail.Row, r *ahead.Record) error {
		r.Seq, r.Message = 1, postrider.Message{ID: "1", Time: time.Unix(0, 0)}
		if l.broken {
			return errors.New("it cannot be read")
		}
		return nil
	})
	return l
}

// sent reads all lanes, tells a row, and reports whether it goes ahead.
func (l *fakeLog) sent(t *testing.T, history string) (sent bool) {
	t.Helper()
	var reads []store.LaneRead
	for lane := range store.Lane(4) {
		reads = append(reads, store.LaneRead{Lane: lane, MaxRecords: 10, MaxBytes: 1 << 20, Number: 1})
	}
	l.Read(l.Begin(reads), reads, nil, &xids.Look{Next: 100}, true)
	l.told(100, []tail.Row{make(tail.Row, len(tail.Columns()))}, true)
	for i := range reads {
		reads[i].Ahead, reads[i].Known, reads[i].Number = true, 1, 2
	}
	batches, _ := l.Take(reads, history)
	for _, b := range batches {
		sent = sent || len(b.Messages) > 0
	}
	return sent
}
