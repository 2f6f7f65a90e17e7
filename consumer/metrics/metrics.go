// Package metrics serves the figures of consumers to Prometheus:
//
//	http.Handle("/metrics", metrics.Handler(c))
//
// The page has the text format of Prometheus, version 0.0.4
// (prometheus.io/docs/instrumenting/exposition_formats), and rules for alerts
// are in docs/alerts. A program with metrics of its own at /metrics serves
// these under another path, with a scrape of their own.
package metrics

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/inbox"
)

// Source is a *consumer.Consumer with any type of transaction.
type Source interface {
	Stats() consumer.Stats
	// Status queries the database.
	Status(ctx context.Context) (inbox.Status, error)
}

const (
	// maxAge is the age up to which an answer of the database is reused, so that scrapers
	// cannot load the database.
	maxAge = 5 * time.Second
	// patience bounds one query to the database.
	patience = 5 * time.Second
)

// Handler serves the series of consumers with different names. On a scrape it queries the
// database of each, at most every 5 seconds.
func Handler(consumers ...Source) http.Handler {
	h := &handler{}
	for _, c := range consumers {
		h.of = append(h.of, &watched{Source: c})
	}
	return h
}

type handler struct{ of []*watched }

// watched is a consumer and the last answer of its database.
type watched struct {
	Source
	mu    sync.Mutex
	last  inbox.Status
	up    bool
	asked time.Time
}

func (w *watched) look(ctx context.Context) (inbox.Status, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asked.IsZero() && time.Since(w.asked) < maxAge {
		return w.last, w.up
	}
	// An aborted scrape must not make the next one report that the database is down.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	s, err := w.Status(ctx)
	w.last, w.up, w.asked = s, err == nil, time.Now()
	return w.last, w.up
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := &page{lines: map[string]*bytes.Buffer{}}
	for _, of := range h.of {
		s := of.Stats()
		p.consumer = s.Consumer
		p.stats(&s)
		status, up := of.look(r.Context())
		p.gauge("status_up", "1 when the database answered the last question for the series of the tables.", truth(up))
		if up { // stale figures look healthy, which is worse than none
			p.status(&status)
		}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(p.bytes()) // fails only if the scraper has gone
}

// page collects the lines of each series, which must be adjacent.
type page struct {
	consumer string
	order    []string
	lines    map[string]*bytes.Buffer
}

func (p *page) stats(s *consumer.Stats) {
	p.counter("effects_total", "Messages whose effect was committed.", s.Effects)
	p.counter("duplicates_total", "Messages dropped because the inbox had them.", s.Duplicates)
	p.counter("stale_total", "Messages dropped because a later version was applied.", s.Stale)
	p.counter("stashed_total", "Messages kept until those before them have come.", s.Stashed)
	p.counter("skipped_total", "Messages acknowledged without a handler.", s.Skipped)
	p.counter("retries_total", "Tries that failed and are followed by another.", s.Retries)
	p.counter("dead_total", "Messages given up.", s.Dead)
	p.histogram("handler_duration_seconds", "Time of one call of a handler, failed ones included.", &s.Handler)
	p.histogram("latency_seconds", "Time from enqueue, by the clock of the producer's database, to the committed effect, by the clock of this process.", &s.Latency)
	// These parts have a series even while they work, so that an alert can distinguish
	// "works" from "not scraped".
	parts := map[string]bool{}
	for _, part := range s.Down {
		parts[part] = true
	}
	for _, part := range []string{"database", "keys", "handlers"} {
		p.gauge("down", "1 for each part that is unreachable now.", truth(parts[part]), "part", part)
	}
}

func (p *page) status(s *inbox.Status) {
	p.gauge("dead_letters", "Dead letters in the database.", float64(s.Dead))
	p.gauge("retrying_messages", "Messages that failed and are to be tried again.", float64(s.Retrying))
	p.gauge("overdue_messages", "Messages whose next try was due a minute ago or more.", float64(s.Overdue))
	p.gauge("overdue_age_seconds", "For how long the oldest overdue message has been due.", s.OverdueAge.Seconds())
	p.gauge("stashed_messages", "Messages that wait in the database for their turn.", float64(s.Stashed))
	p.gauge("due_messages", "Stashed messages whose turn has come.", float64(s.Due))
	p.gauge("due_age_seconds", "For how long the oldest of these has been in the database.", s.DueAge.Seconds())
	p.gauge("gaps", "Keys whose messages wait for versions that have not come.", float64(s.Gaps))
	p.gauge("gap_age_seconds", "For how long the oldest of them waits.", s.GapAge.Seconds())
	p.gauge("blocked_keys", "Keys that wait behind a dead letter.", float64(s.Blocked))
	if !s.LastClaim.IsZero() {
		p.gauge("idle_seconds", "Time since any process of the consumer has processed a message.", s.At.Sub(s.LastClaim).Seconds())
		p.gauge("oldest_claim_age_seconds", "Age of the oldest message that the inbox remembers.", s.At.Sub(s.FirstClaim).Seconds())
	}
}

func (p *page) counter(name, help string, v int64) {
	p.line(name, "counter", help, "", strconv.FormatInt(v, 10))
}

func (p *page) gauge(name, help string, v float64, label ...string) {
	p.line(name, "gauge", help, "", number(v), label...)
}

func (p *page) histogram(name, help string, h *consumer.Histogram) {
	var n int64
	for i, bound := range consumer.Bounds() {
		n += h.Counts[i]
		p.line(name, "histogram", help, "_bucket", strconv.FormatInt(n, 10), "le", number(bound.Seconds()))
	}
	// All at one moment: the sum of what was just read.
	n = h.Count()
	p.line(name, "histogram", help, "_bucket", strconv.FormatInt(n, 10), "le", "+Inf")
	p.line(name, "histogram", help, "_sum", number(h.Sum.Seconds()))
	p.line(name, "histogram", help, "_count", strconv.FormatInt(n, 10))
}

// line adds one sample of the consumer with at most one further label.
func (p *page) line(name, kind, help, suffix, value string, label ...string) {
	b := p.lines[name]
	if b == nil {
		b = &bytes.Buffer{}
		b.WriteString("# HELP postrider_consumer_" + name + " " + help + "\n# TYPE postrider_consumer_" + name + " " + kind + "\n")
		p.lines[name] = b
		p.order = append(p.order, name)
	}
	b.WriteString("postrider_consumer_" + name + suffix + `{consumer="` + escape(p.consumer) + `"`)
	if len(label) == 2 {
		b.WriteString("," + label[0] + `="` + label[1] + `"`)
	}
	b.WriteString("} " + value + "\n")
}

func (p *page) bytes() []byte {
	var all bytes.Buffer
	for _, name := range p.order {
		all.Write(p.lines[name].Bytes())
	}
	return all.Bytes()
}

// escape escapes a name for use as a label's value; the format has three escapes.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
