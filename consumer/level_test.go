package consumer

import (
	"testing"
	"time"
)

// TestLevelWithTheSource: the time of a gap runs only while nothing is left with the source.
func TestLevelWithTheSource(t *testing.T) {
	start := time.Unix(0, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	for name, c := range map[string]struct {
		do   func(l *level)
		want int // seconds, at second 100
	}{
		"new":             {func(*level) {}, 0},
		"nothing comes":   {func(l *level) { l.asks(at(10)) }, 90},
		"backlog":         {func(l *level) { l.asks(at(10)); l.answered(at(10), 8, 8); l.asks(at(90)) }, 10},
		"joins first":     {func(l *level) { l.asks(at(0)); l.answered(at(10), 8, 8); l.asks(at(99)) }, 1},
		"all received":    {func(l *level) { l.asks(at(0)); l.answered(at(40), 7, 8); l.asks(at(50)); l.answered(at(50), 8, 8) }, 60},
		"one at a time":   {func(l *level) { l.asks(at(0)); l.answered(at(1), 1, 1); l.asks(at(2)); l.answered(at(20), 1, 1) }, 80},
		"source was away": {func(l *level) { l.answered(at(0), 1, 8); l.asks(at(1)); l.failed(); l.asks(at(70)) }, 30},
		"given back":      {func(l *level) { l.answered(at(0), 1, 8); l.asks(at(1)); l.givenBack(at(80)) }, 20},
		"behind too":      {func(l *level) { l.asks(at(1)); l.givenBack(at(80)) }, 20},
	} {
		var l level
		c.do(&l)
		if got := l.lasts(at(100)); got != time.Duration(c.want)*time.Second {
			t.Errorf("%s: level for %v, want %d s", name, got, c.want)
		}
	}
}
