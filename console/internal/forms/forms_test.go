package forms

import (
	"strconv"
	"testing"
	"time"
)

// Forms are remembered for twelve hours, and the oldest is forgotten when there are too many.
func TestSentFormsAreBounded(t *testing.T) {
	var s Sent
	now := time.Now()
	for i := range most + 10 {
		s.Take(strconv.Itoa(i), now.Add(time.Duration(i)))
	}
	newest := strconv.Itoa(most + 9)
	if s.Take(newest, now.Add(time.Hour)) || !s.Take("0", now.Add(time.Hour)) || !s.Take(newest, now.Add(2*keptFor)) {
		t.Error("the newest form is forgotten, the oldest is not, or one is remembered for ever")
	}
	if len(s.all) > most {
		t.Errorf("%d forms are remembered, want at most %d", len(s.all), most)
	}
}
