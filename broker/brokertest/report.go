package brokertest

import (
	"fmt"
	"strings"
	"sync"

	"github.com/postrider/postrider/internal/listed"
)

// report has the results of one run on one server.
type report struct {
	mu      sync.Mutex
	cases   []Case // of the run
	server  string
	reasons map[string]string // by case that has passed: why it does not apply, "" if it does
}

func (r *report) note(server, name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server, r.reasons[name] = server, why
}

// check compares the report with the list, if all cases of the run have passed
// and there is a list: an adapter may live elsewhere.
func (r *report) check() error {
	if r.server == "" || len(r.reasons) < len(r.cases) {
		return nil
	}
	part := listed.Part{Table: "| Server | When | Sink | Source |\n|---|---|---|---|\n", Level: "###"}
	return part.Check(r.server, []string{"sink " + r.count("sink/"), "source " + r.count("source/")}, r.body())
}

// body has the cases that do not apply to a whole run, and those that ran of another one.
func (r *report) body() string {
	var b strings.Builder
	whole := len(r.cases) == len(Cases())
	for _, c := range r.cases {
		switch why := r.reasons[c.Name]; {
		case why != "":
			fmt.Fprintf(&b, "- not `%s`: %s\n", c.Name, why)
		case !whole:
			fmt.Fprintf(&b, "- `%s`\n", c.Name)
		}
	}
	return b.String()
}

// count returns "30 of 34": the cases of a group that ran, and all of them.
func (r *report) count(group string) string {
	ran := 0
	for _, c := range r.cases {
		if strings.HasPrefix(c.Name, group) && r.reasons[c.Name] == "" {
			ran++
		}
	}
	return fmt.Sprintf("%d of %d", ran, size(group))
}

func size(group string) (n int) {
	for _, c := range Cases() {
		if strings.HasPrefix(c.Name, group) {
			n++
		}
	}
	return n
}
