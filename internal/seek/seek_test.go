package seek

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// With holes in the numbers and clocks that are off by a little, First lands beside
// the row, in as many probes as the numbers have bits.
func TestFirst(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var rows []Row
	for i := range int64(5000) {
		if i%7 == 3 || i > 1000 && i < 1900 {
			continue // rolled back, or removed
		}
		rows = append(rows, Row{i, start.Add(time.Duration(i)*time.Second + time.Duration(i%5)*300*time.Millisecond)})
	}
	probes := 0
	probe := func(_ context.Context, seq int64) (Row, bool, error) {
		probes++
		n := sort.Search(len(rows), func(i int) bool { return rows[i].Seq >= seq })
		if n == len(rows) {
			return Row{}, false, nil
		}
		return rows[n], true, nil
	}
	for _, row := range rows {
		probes = 0
		got, err := First(t.Context(), 0, 1<<40, row.At, probe)
		from := sort.Search(len(rows), func(i int) bool { return rows[i].Seq >= got })
		if err != nil || got > row.Seq+3 || rows[from].Seq < row.Seq-3 {
			t.Fatalf("row %d: First = %d, %v", row.Seq, got, err)
		}
		if probes > 42 {
			t.Fatalf("row %d: %d probes", row.Seq, probes)
		}
	}
	if got, err := First(t.Context(), 0, 6000, start.Add(24*time.Hour), probe); err != nil || got < 5000 {
		t.Errorf("later than all rows: %d, %v", got, err)
	}
	if got, err := First(t.Context(), 0, 6000, start.Add(-time.Hour), probe); err != nil || got != 0 {
		t.Errorf("before all rows: %d, %v", got, err)
	}
}

// A message is looked for in wider and wider ranges around its time, and an error has the
// range that was searched.
func TestFind(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const rows = 300_000
	errDown := errors.New("down")
	var asked []int64
	at := int64(0) // where the message is
	box := Outbox{
		Pipe: "main",
		Wrap: func(what string, err error) error {
			if err != nil {
				err = fmt.Errorf("%s: %w", what, err)
			}
			return err
		},
		Ends: func(context.Context) (int64, int64, error) { return 1, rows + 1, nil },
		Probe: func(_ context.Context, seq int64) (Row, bool, error) {
			return Row{seq, start.Add(time.Duration(seq) * time.Second)}, seq <= rows, nil
		},
		Among: func(_ context.Context, from, to int64) (bool, error) {
			asked = append(asked, to-from)
			return at >= from && at < to, nil
		},
	}
	find := func(id string, when time.Time, want string, ranges int) {
		t.Helper()
		asked = nil
		err := box.Find(t.Context(), ops.MessageQuery{ID: id, At: when})
		if got := fmt.Sprint(err); !strings.Contains(got, want) || len(asked) != ranges {
			t.Errorf("message at %d: error %v after %d ranges, want %q after %d", at, err, len(asked), want, ranges)
		}
	}
	when := start.Add(150_000 * time.Second)
	at = 150_100
	find("x", when, "<nil>", 1)
	at = 160_000
	find("x", when, "<nil>", 2)
	at = 90_000
	find("x", when, "<nil>", 3)
	at = 1
	find("x", when, "expected among the numbers 50000 to 249999", 3)
	find("x", start, "<nil>", 1)
	find("x", time.Time{}, "not a UUIDv7", 0)
	box.Ends = func(context.Context) (int64, int64, error) { return 0, 0, nil }
	find("x", when, "the outbox has no rows", 1)
	box.Ends = func(context.Context) (int64, int64, error) { return 0, 0, errDown }
	if err := box.Find(t.Context(), ops.MessageQuery{ID: "x", At: when}); !errors.Is(err, errDown) {
		t.Errorf("error %v, want that of the database", err)
	}
}
