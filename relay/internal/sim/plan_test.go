package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store/memstore"
)

// TestPlans runs the plans that found something, each with what it found in its
// first line. They are kept as text, so that they mean the same when plans are drawn
// otherwise. POSTRIDER_SIM_PLAN=file runs that one and prints its trace.
//
// Promises: L
func TestPlans(t *testing.T) {
	if path := os.Getenv("POSTRIDER_SIM_PLAN"); path != "" {
		_, p := readPlan(t, path)
		w := newWorld(t.Context(), p, mutant{}, true)
		v := w.run()
		t.Logf("%s", script(p, w))
		if v != nil {
			t.Error(v)
		}
		return
	}
	for _, path := range plans(t) {
		found, p := readPlan(t, path)
		if v := newWorld(t.Context(), p, mutant{}, false).run(); v != nil {
			t.Errorf("%s (%s): %v", path, found, v)
		}
	}
}

// TestPlanAsText shows that a plan is read as it was printed.
func TestPlanAsText(t *testing.T) {
	for seed := range uint64(200) {
		p := makePlan(seed)
		if seed%4 == 1 {
			p = p.goesAhead()
		}
		if seed%40 == 2 {
			p = makeWide(seed)
		}
		q, err := parsePlan(p.String())
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if q.String() != p.String() {
			t.Fatalf("seed %d: printed\n%s\nread as\n%s", seed, p, q)
		}
		a, b := newWorld(t.Context(), p, mutant{}, false), newWorld(t.Context(), q, mutant{}, false)
		if a.run(); b.run() != nil || a.hash != b.hash {
			t.Fatalf("seed %d runs otherwise when its plan is read from text", seed)
		}
	}
}

func plans(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.plan")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d plans, error %v", len(paths), err)
	}
	return paths
}

func readPlan(t *testing.T, path string) (found string, p plan) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found, rest, _ := strings.Cut(string(text), "\n")
	if !strings.HasPrefix(found, "# ") {
		found, rest = "", string(text)
	}
	p, err = parsePlan(rest)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return strings.TrimPrefix(found, "# "), p
}

var word = regexp.MustCompile(`\[[^]]*\]|\S+`)

// parsePlan reads what plan.String prints.
func parsePlan(text string) (plan, error) {
	head, rest, _ := strings.Cut(strings.TrimSpace(text), "\n")
	r := reader{}
	f := r.fields(word.FindAllString(head, -1))
	p := plan{
		Seed: uint64(r.number(f["seed"])), Family: memstore.Family(r.number(f["family"])), Lanes: r.number(f["lanes"]),
		Nodes: r.number(f["nodes"]), Window: r.number(f["window"]), Page: r.number(f["page"]), MaxAttempts: r.number(f["attempts"]),
		Skip: f["skip"] == "true", Brake: r.number(f["brake"]), ParkedKeys: r.number(f["keys"]), Latency: r.duration(f["latency"]),
		Ahead: f["ahead"] == "true",
	}
	if f["drift"] != "" {
		p.Drift = r.number(f["drift"])
	}
	if f["topics"] != "" {
		p.Wide = &wide{
			Topics: r.number(f["topics"]), Places: r.number(f["places"]), Hooks: r.number(f["hooks"]), Faults: r.duration(f["faults"]),
			OutageMax: r.duration(f["outage"]), Size: r.number(f["size"]), Bytes: r.number(f["bytes"]), Messages: r.number(f["messages"]),
			Batch: r.number(f["batch"]), Rate: r.number(f["rate"]), Own: r.number(f["own"]), Odd: f["odd"] == "true", Delays: f["delays"] == "true",
		}
	}
	for _, line := range strings.Split(rest, "\n") {
		if words := word.FindAllString(line, -1); len(words) > 2 {
			p.Ops = append(p.Ops, r.op(words))
		}
	}
	return p, r.err
}

// reader reads numbers and keeps the first error.
type reader struct{ err error }

func (r *reader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) fields(words []string) map[string]string {
	all := map[string]string{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		all[name] = value
	}
	return all
}

func (r *reader) number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		r.keep(err)
	}
	return n
}

func (r *reader) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		r.keep(err)
	}
	return d
}

func (r *reader) op(words []string) op {
	f := r.fields(words[2:])
	o := op{At: r.duration(words[0]), Kind: opKind(slices.Index(opNames[:], words[1]))}
	if o.Kind != opTx {
		if int(o.Kind) >= len(opNames) {
			r.keep(fmt.Errorf("operation %q is unknown", words[1]))
		}
		o.Node, o.Dur, o.N = r.number(f["node"]), r.duration(f["dur"]), r.number(f["n"])
		return o
	}
	o.Dur, o.Tx = r.duration(f["hold"]), txPlan{Early: f["early"] == "true", Rollback: f["rollback"] == "true"}
	for _, in := range strings.Fields(strings.Trim(words[len(words)-1], "[]")) {
		key, kind, _ := strings.Cut(strings.TrimPrefix(in, "k"), ":")
		o.Tx.Inserts = append(o.Tx.Inserts, insert{r.number(key), msgKind(slices.Index(kindNames[:], kind))})
	}
	return o
}
