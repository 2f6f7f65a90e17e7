package metrics

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
)

// fixed is a consumer with constant figures.
type fixed struct {
	stats  consumer.Stats
	status inbox.Status
	err    error
	asked  int
}

func (f *fixed) Stats() consumer.Stats { return f.stats }

func (f *fixed) Status(context.Context) (inbox.Status, error) {
	f.asked++
	return f.status, f.err
}

func scrape(t *testing.T, of ...Source) string {
	t.Helper()
	return scrapeHandler(t, Handler(of...).(*handler))
}

func scrapeHandler(t *testing.T, h *handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	return w.Body.String()
}

func TestPage(t *testing.T) {
	a := &fixed{stats: consumer.Stats{Consumer: "a\"\\\nb", Effects: 7, Down: []string{"database"}}}
	a.stats.Latency.Counts[1] = 2
	a.stats.Latency.Counts[len(a.stats.Latency.Counts)-1] = 1
	a.stats.Latency.Sum = 2 * time.Hour
	now := time.Now()
	a.status = inbox.Status{At: now, FirstClaim: now.Add(-time.Hour), LastClaim: now.Add(-time.Second), Dead: 3, GapAge: 90 * time.Second}
	page := scrape(t, a, &fixed{stats: consumer.Stats{Consumer: "c"}, err: errors.New("away")})
	for _, want := range []string{
		`postrider_consumer_effects_total{consumer="a\"\\\nb"} 7`,
		`postrider_consumer_effects_total{consumer="c"} 0`,
		`postrider_consumer_latency_seconds_bucket{consumer="a\"\\\nb",le="0.001"} 0`,
		`postrider_consumer_latency_seconds_bucket{consumer="a\"\\\nb",le="0.0025"} 2`,
		`postrider_consumer_latency_seconds_bucket{consumer="a\"\\\nb",le="3600"} 2`,
		`postrider_consumer_latency_seconds_bucket{consumer="a\"\\\nb",le="+Inf"} 3`,
		`postrider_consumer_latency_seconds_sum{consumer="a\"\\\nb"} 7200`,
		`postrider_consumer_down{consumer="a\"\\\nb",part="database"} 1`,
		`postrider_consumer_down{consumer="c",part="database"} 0`,
		`postrider_consumer_dead_letters{consumer="a\"\\\nb"} 3`,
		`postrider_consumer_gap_age_seconds{consumer="a\"\\\nb"} 90`,
		`postrider_consumer_idle_seconds{consumer="a\"\\\nb"} 1`,
		`postrider_consumer_status_up{consumer="c"} 0`,
	} {
		if !strings.Contains(page, "\n"+want+"\n") {
			t.Errorf("not served: %s", want)
		}
	}
	if strings.Contains(page, `dead_letters{consumer="c"}`) {
		t.Error("figures of a database that did not answer are served")
	}
	if n := strings.Count(page, "# TYPE postrider_consumer_effects_total counter"); n != 1 {
		t.Errorf("the type is told %d times, want once", n)
	}
	if t.Failed() {
		t.Log(page)
	}
}

// TestScrapesDoNotLoadTheDatabase: scrapes query the database at most every 5 seconds.
func TestScrapesDoNotLoadTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fixed{}
		h := Handler(c).(*handler)
		for range 100 {
			scrapeHandler(t, h)
		}
		if c.asked != 1 {
			t.Errorf("asked %d times, want once", c.asked)
		}
		time.Sleep(maxAge)
		if scrapeHandler(t, h); c.asked != 2 {
			t.Errorf("asked %d times after %v, want twice", c.asked, maxAge)
		}
	})
}
