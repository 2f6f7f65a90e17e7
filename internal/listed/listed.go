// Package listed keeps the lists of docs/conformance.md: what a contract suite ran on each
// server.
package listed

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// updates is the environment variable that makes runs write their results into the list
// instead of comparing them.
const updates = "POSTRIDER_UPDATE"

const (
	always = "every run"
	rarely = "`make matrix`"
)

// Part is the part of the document that belongs to one suite: a table with a row for each
// server, and an entry for each behind it.
type Part struct {
	Table string // the head of the table; the rows follow
	Level string // of the entries' headings, such as "###"
	End   string // the text behind the part; "": the document ends with it
}

// Check compares the run on a server with the list, or writes it there when
// POSTRIDER_UPDATE=1. Without a list in a directory above it does nothing: a store or an
// adapter may live elsewhere. counts has what ran of each group, such as "sink 3 of 40",
// and body the lines below it.
func (p Part) Check(server string, counts []string, body string) error {
	path, err := find()
	if err != nil || path == "" {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the list of what ran where: %w", err)
	}
	l, err := p.parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	update := os.Getenv(updates) == "1"
	when, _ := l.row(server)
	if os.Getenv("POSTRIDER_MATRIX") == "1" { // it runs more than every run does
		when = cmp.Or(when, rarely)
	} else if update {
		when = always
	}
	entry := strings.TrimRight(when+"; "+strings.Join(counts, "; ")+"\n\n"+body, "\n") + "\n"
	if l.entries[server] == entry {
		return nil
	}
	if !update {
		return fmt.Errorf("%s does not match the run on %s: run this test again with %s=1", path, server, updates)
	}
	l.entries[server] = entry
	return replace(path, l.String())
}

// list is the document with the entries of one part taken apart.
type list struct {
	Part
	before, after string
	entries       map[string]string
}

func (p Part) parse(text string) (list, error) {
	before, rest, ok := strings.Cut(text, p.Table)
	entries, after, found := rest, "", true
	if p.End != "" {
		entries, after, found = strings.Cut(rest, p.End)
	}
	if !ok || !found {
		return list{}, errors.New("the table of servers, or the heading behind it, is missing")
	}
	l := list{Part: p, before: before, after: after, entries: map[string]string{}}
	for _, entry := range strings.Split(entries, "\n"+p.Level+" ")[1:] {
		name, body, _ := strings.Cut(entry, "\n\n")
		l.entries[name] = strings.TrimRight(body, "\n") + "\n"
	}
	return l, nil
}

// counted is a count of an entry's first line, which may begin with the name of its group.
var counted = regexp.MustCompile(`\d+ of \d+$`)

// row takes the first line of an entry apart.
func (l list) row(server string) (when string, counts []string) {
	first, _, _ := strings.Cut(l.entries[server], "\n")
	parts := strings.Split(first, "; ")
	for _, part := range parts[1:] {
		counts = append(counts, counted.FindString(part))
	}
	return parts[0], counts
}

func (l list) String() string {
	var b strings.Builder
	b.WriteString(l.before + l.Table)
	servers := make([]string, 0, len(l.entries))
	for server := range l.entries {
		servers = append(servers, server)
	}
	slices.Sort(servers)
	for _, server := range servers {
		when, counts := l.row(server)
		fmt.Fprintf(&b, "| %s | %s | %s |\n", server, when, strings.Join(counts, " | "))
	}
	for _, server := range servers {
		fmt.Fprintf(&b, "\n%s %s\n\n%s", l.Level, server, l.entries[server])
	}
	return b.String() + l.End + l.after
}

// find finds the list in a directory above; "" when it is missing.
func find() (string, error) {
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
