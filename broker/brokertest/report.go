package brokertest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// updates is the environment variable that makes runs write their results
// into the list instead of comparing them.
const updates = "POSTRIDER_UPDATE"

const (
	always = "every run"
	rarely = "`make matrix`"
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
	path, err := listPath()
	if err != nil {
		return err
	}
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the list of what ran where: %w", err)
	}
	l := parseList(string(text))
	update := os.Getenv(updates) == "1"
	when := l.when(r.server)
	if rare := os.Getenv("POSTRIDER_MATRIX") == "1"; rare { // it runs more than every run does
		when = cmp.Or(when, rarely)
	} else if update {
		when = always
	}
	section := r.section(when)
	if l.sections[r.server] == section {
		return nil
	}
	if !update {
		return fmt.Errorf("%s does not match the run on %s: run this test again with %s=1", path, r.server, updates)
	}
	l.sections[r.server] = section
	return replace(path, l.String())
}

// replace replaces a file atomically, because concurrent runs read it.
func replace(path, text string) error {
	next, err := os.CreateTemp(filepath.Dir(path), "conformance")
	if err != nil {
		return err
	}
	_, err = next.WriteString(text)
	if err = errors.Join(err, next.Chmod(0o644), next.Close()); err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write the list of what ran where: %w", errors.Join(err, os.Remove(next.Name())))
	}
	return nil
}

// listPath finds the list in a directory above; "" when it is missing.
func listPath() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "docs", "conformance.md")
		if _, err := os.Stat(path); err == nil || !errors.Is(err, os.ErrNotExist) {
			return path, err
		}
		if dir == filepath.Dir(dir) {
			return "", nil
		}
	}
}

// section returns the list's section for a run: for a whole run the cases that do not
// apply, for another run the cases that ran.
func (r *report) section(when string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s; sink %s; source %s\n\n", when, r.count("sink/"), r.count("source/"))
	whole := len(r.cases) == len(Cases())
	for _, c := range r.cases {
		switch why := r.reasons[c.Name]; {
		case why != "":
			fmt.Fprintf(&b, "- not `%s`: %s\n", c.Name, why)
		case !whole:
			fmt.Fprintf(&b, "- `%s`\n", c.Name)
		}
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
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

// list is docs/conformance.md: a text written by a person, a table, and a section for
// each server.
type list struct {
	head     string
	sections map[string]string
}

const tableHead = "| Server | When | Sink | Source |\n|---|---|---|---|\n"

func parseList(text string) list {
	head, rest, _ := strings.Cut(text, tableHead)
	l := list{head: head, sections: make(map[string]string)}
	for _, section := range strings.Split(rest, "\n### ")[1:] {
		server, body, _ := strings.Cut(section, "\n")
		l.sections[server] = strings.TrimRight(body, "\n") + "\n"
	}
	return l
}

var counts = regexp.MustCompile(`^\n(.+); sink (\d+ of \d+); source (\d+ of \d+)\n`)

func (l list) when(server string) string {
	if m := counts.FindStringSubmatch(l.sections[server]); m != nil {
		return m[1]
	}
	return ""
}

func (l list) String() string {
	var b strings.Builder
	b.WriteString(l.head + tableHead)
	servers := make([]string, 0, len(l.sections))
	for server := range l.sections {
		servers = append(servers, server)
	}
	slices.Sort(servers)
	for _, server := range servers {
		if m := counts.FindStringSubmatch(l.sections[server]); m != nil {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", server, m[1], m[2], m[3])
		}
	}
	for _, server := range servers {
		fmt.Fprintf(&b, "\n### %s\n%s", server, l.sections[server])
	}
	return b.String()
}
