package seek

import (
	"context"
	"sort"
	"testing"
	"time"
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
