package uuidv7

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var form = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestForm(t *testing.T) {
	at := time.UnixMilli(0x0190_0000_1234).Add(500 * time.Microsecond)
	g := Generator{now: func() time.Time { return at }}
	id := g.New()
	if !form.MatchString(id) {
		t.Fatalf("%q is not a UUIDv7", id)
	}
	if want := "01900000-1234-7800-"; !strings.HasPrefix(id, want) {
		t.Errorf("id of %v is %q, want the prefix %q", at, id, want)
	}
}

func TestGrowsWhenTheClockDoesNot(t *testing.T) {
	clock := time.UnixMilli(1_800_000_000_000)
	g := Generator{now: func() time.Time { return clock }}
	last := ""
	for i := range 10_000 {
		if i == 5_000 {
			clock = clock.Add(-time.Hour)
		}
		id := g.New()
		if id <= last {
			t.Fatalf("id %d: %q is not above %q", i, id, last)
		}
		last = id
	}
	ms, err := strconv.ParseInt(strings.ReplaceAll(last[:13], "-", ""), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	if ahead := ms - 1_800_000_000_000; ahead > 3 {
		t.Errorf("10,000 ids ran %d ms ahead of the clock", ahead)
	}
}

func TestUniqueAcrossGoroutines(t *testing.T) {
	var g Generator
	var wg sync.WaitGroup
	got := make([][]string, 8)
	for i := range got {
		wg.Go(func() {
			for range 2_000 {
				got[i] = append(got[i], g.New())
			}
			if !slices.IsSorted(got[i]) {
				t.Error("ids seen by one goroutine do not grow")
			}
		})
	}
	wg.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(got...)))
	if n := len(slices.Compact(all)); n != 16_000 {
		t.Errorf("%d distinct ids of 16000", n)
	}
}

func BenchmarkNew(b *testing.B) {
	var g Generator
	b.ReportAllocs()
	for b.Loop() {
		g.New()
	}
}

func TestTime(t *testing.T) {
	at := time.UnixMilli(1_800_000_000_123)
	g := Generator{now: func() time.Time { return at }}
	if got, ok := Time(g.New()); !ok || !got.Equal(at) {
		t.Errorf("Time = %v, %v, want %v", got, ok, at)
	}
	for _, id := range []string{"", "x", "01900000-1234-4800-8000-000000000000", "01900000-1234-7800-c000-000000000000", "01900000x1234x7800x8000x000000000000", "0190000g-1234-7800-8000-000000000000"} {
		if got, ok := Time(id); ok {
			t.Errorf("%q holds the time %v", id, got)
		}
	}
}
