package main

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"text/tabwriter"
)

// report is the JSON object. Numbers are medians over the rounds, ratios medians of the
// rounds' ratios of events per second; a ratio without its peer is null.
type report struct {
	Workload string `json:"workload"`
	Broker   string `json:"broker"`
	Store    string `json:"store"`
	Postgres string `json:"postgres,omitempty"`
	Cores    int    `json:"cores"`
	Messages int    `json:"messages"`
	Rounds   int    `json:"rounds"`
	Rate     int    `json:"rate"`
	Gate     gate   `json:"gate"` // of Postrider, default and tuned, all rounds
	Ratios   struct {
		Same  *float64 `json:"of_client_same"`
		Raw   *float64 `json:"of_client_raw"` // the better of raw and compressed
		CDC   *float64 `json:"of_go_pq_cdc"`
		Table *float64 `json:"of_best_table_relay"`
		Canal *float64 `json:"of_canal,omitempty"`
	} `json:"ratios"`
	Ours    *outcome            `json:"postrider"`
	Peers   map[string]*outcome `json:"peers"` // all other ways
	Latency map[string]latency  `json:"latency"`
	Idle    map[string]idle     `json:"idle"`

	ways []*way
	runs map[string][]*numbers // by round; nil without numbers
}

// outcome has the medians of a way.
type outcome struct {
	numbers
	Setup  string `json:"setup"`
	Gate   gate   `json:"gate"`
	Rounds int    `json:"rounds"`           // with numbers
	Absent string `json:"absent,omitempty"` // the reason for missing rounds
}

func newReport(c config, all []*way, l *lab) *report {
	r := &report{
		Workload: "peers", Broker: c.broker, Store: c.store, Postgres: l.postgres(), Cores: runtime.NumCPU(), Messages: c.messages, Rounds: c.rounds, Rate: c.rate,
		Gate: gate{OK: true}, Peers: map[string]*outcome{}, Latency: map[string]latency{}, Idle: map[string]idle{},
		ways: all, runs: map[string][]*numbers{},
	}
	for _, w := range all {
		r.Peers[w.name] = &outcome{Setup: w.setup, Gate: gate{OK: true}}
		r.runs[w.name] = make([]*numbers, c.rounds)
		if w.absent != nil {
			r.failed(w.name, w.absent)
		}
	}
	r.Ours = r.Peers[nameOurs]
	delete(r.Peers, nameOurs)
	return r
}

func (r *report) of(name string) *outcome {
	if name == nameOurs {
		return r.Ours
	}
	return r.Peers[name]
}

// failed keeps why a way has fewer numbers than rounds.
func (r *report) failed(name string, err error) { r.of(name).Absent = fmt.Sprintf("%.400s", err) }

func (r *report) add(name string, round int, got numbers, g gate) {
	o := r.of(name)
	o.Gate.add(g)
	o.Rounds++
	r.runs[name][round] = &got
	if name == nameOurs || name == nameBest {
		strict := g
		strict.OK = g.OK && g.Duplicates == 0 && g.Disorder == 0
		r.Gate.add(strict)
	}
}

func (r *report) finish() {
	for name, runs := range r.runs {
		o := r.of(name)
		med := func(of func(*numbers) float64) float64 {
			var v []float64
			for _, n := range runs {
				if n != nil {
					v = append(v, of(n))
				}
			}
			return median(v)
		}
		o.Events = med(func(n *numbers) float64 { return n.Events })
		o.CPU = med(func(n *numbers) float64 { return n.CPU })
		o.DB = med(func(n *numbers) float64 { return n.DB })
		o.Broker = med(func(n *numbers) float64 { return n.Broker })
		o.RSS = med(func(n *numbers) float64 { return n.RSS })
		o.Dead = med(func(n *numbers) float64 { return n.Dead })
		o.AllDd = med(func(n *numbers) float64 { return n.AllDd })
		o.WAL = med(func(n *numbers) float64 { return n.WAL })
	}
	r.Ratios.Same = r.ratio(nameSame)
	r.Ratios.Raw = r.ratio(nameRaw, namePacked)
	r.Ratios.CDC, r.Ratios.Canal = r.ratio(nameCDC), r.ratio(nameCanal)
	var relays []string
	for _, w := range r.ways {
		if w.kind == tables {
			relays = append(relays, w.name)
		}
	}
	r.Ratios.Table = r.ratio(relays...)
}

// ratio compares Postrider, with its default flags, with the best of some ways, round by round.
func (r *report) ratio(names ...string) *float64 {
	var v []float64
	for round, own := range r.runs[nameOurs] {
		best := 0.0
		for _, name := range names {
			if runs := r.runs[name]; runs != nil && runs[round] != nil {
				best = max(best, runs[round].Events)
			}
		}
		if own != nil && best > 0 {
			v = append(v, own.Events/best)
		}
	}
	if len(v) == 0 {
		return nil
	}
	m := round(median(v))
	return &m
}

// print writes the tables for people.
func (r *report) print(out io.Writer) {
	product, log := "PostgreSQL "+r.Postgres, "WAL"
	if r.Postgres == "" { // the binlog; updates and deletes are those of all tables
		product, log = r.Store, "binlog"
	}
	fmt.Fprintf(out, "%d messages of 256 bytes, %s, Kafka, %d cores, medians of %d rounds\n\n", r.Messages, product, r.Cores, r.Rounds)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tmessages/s\tCPU s/M\tdatabase\tbroker\tRSS MiB\tdead/msg\t"+log+" B/msg\tdoubled\tout of order\tsetup")
	for _, way := range r.ways {
		o := r.of(way.name)
		if o.Rounds == 0 {
			fmt.Fprintf(w, "%s\tNOT MEASURED: %s\n", way.name, o.Absent)
			continue
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.0f\t%.2f\t%.0f\t%d\t%d\t%s\n", way.name, o.Events, o.CPU, o.DB, o.Broker, o.RSS,
			o.Dead/float64(r.Messages), o.WAL, o.Gate.Duplicates, o.Gate.Disorder, way.setup)
		if o.Absent != "" {
			fmt.Fprintf(w, "\t%d of %d rounds: %s\n", o.Rounds, r.Rounds, o.Absent)
		}
	}
	_ = w.Flush()
	if len(r.Latency) == 0 {
		return
	}
	fmt.Fprintf(out, "\nCommit to consumer at %d transactions/s\n\n", r.Rate)
	fmt.Fprintln(w, "\tp50 ms\tp99 ms\tcore\tdatabase")
	r.steady(w, func(name string) string {
		late := r.Latency[name]
		return fmt.Sprintf("%.1f\t%.1f\t%.3f\t%.3f", late.P50, late.P99, late.Core, late.DB)
	})
	fmt.Fprint(out, "\nWaiting for messages\n\n")
	fmt.Fprintln(w, "\tcore\tdatabase\tRSS MiB")
	r.steady(w, func(name string) string {
		rest := r.Idle[name]
		return fmt.Sprintf("%.3f\t%.3f\t%.0f", rest.Core, rest.DB, rest.RSS)
	})
	fmt.Fprintln(out)
}

// steady writes a line for each relay.
func (r *report) steady(w *tabwriter.Writer, line func(name string) string) {
	for _, way := range r.ways {
		if way.kind == client {
			continue
		}
		if _, ok := r.Latency[way.name]; ok {
			fmt.Fprintf(w, "%s\t%s\n", way.name, line(way.name))
		} else {
			fmt.Fprintf(w, "%s\tNOT MEASURED: %s\n", way.name, r.of(way.name).Absent)
		}
	}
	_ = w.Flush()
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func round(x float64) float64  { return math.Round(x*100) / 100 }
func round3(x float64) float64 { return math.Round(x*1000) / 1000 }
