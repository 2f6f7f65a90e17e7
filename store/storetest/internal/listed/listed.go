// Package listed keeps the part of docs/conformance.md that lists what the suite of stores ran on
// each database.
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

// Case is one case of a run that passed.
type Case struct {
	Name string
	Why  string // it does not apply, "" if it does
}

const (
	always = "every run"
	rarely = "`make matrix`"

	begin = "| Database | When | Cases |\n|---|---|---|\n"
	end   = "\n## The suite on each server\n"
)

// Check compares a whole run with the list, or writes it there when POSTRIDER_UPDATE=1. Without a
// list in a directory above it does nothing: a store may live elsewhere.
func Check(database string, cases []Case) error {
	path, err := find()
	if err != nil || path == "" {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the list of what ran where: %w", err)
	}
	l, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	update := os.Getenv("POSTRIDER_UPDATE") == "1"
	when := l.when(database)
	if os.Getenv("POSTRIDER_MATRIX") == "1" { // it runs more than every run does
		when = cmp.Or(when, rarely)
	} else if update {
		when = always
	}
	entry := describe(when, cases)
	if l.entries[database] == entry {
		return nil
	}
	if !update {
		return fmt.Errorf("%s does not match the run on %s: run this test again with POSTRIDER_UPDATE=1", path, database)
	}
	l.entries[database] = entry
	return replace(path, l.String())
}

func describe(when string, cases []Case) string {
	var b strings.Builder
	ran := 0
	for _, c := range cases {
		if c.Why == "" {
			ran++
			continue
		}
		fmt.Fprintf(&b, "- not `%s`: %s\n", c.Name, c.Why)
	}
	return strings.TrimRight(fmt.Sprintf("%s; %d of %d\n\n%s", when, ran, len(cases), b.String()), "\n") + "\n"
}

// list is docs/conformance.md with its entries of databases taken apart.
type list struct {
	before, after string
	entries       map[string]string
}

func parse(text string) (list, error) {
	before, rest, ok := strings.Cut(text, begin)
	table, after, found := strings.Cut(rest, end)
	if !ok || !found {
		return list{}, errors.New("the table of databases, or the heading behind it, is missing")
	}
	l := list{before: before, after: after, entries: map[string]string{}}
	for _, entry := range strings.Split(table, "\n#### ")[1:] {
		name, body, _ := strings.Cut(entry, "\n\n")
		l.entries[name] = strings.TrimRight(body, "\n") + "\n"
	}
	return l, nil
}

var counts = regexp.MustCompile(`^(.+); (\d+ of \d+)\n`)

func (l list) when(database string) string {
	if m := counts.FindStringSubmatch(l.entries[database]); m != nil {
		return m[1]
	}
	return ""
}

func (l list) String() string {
	var b strings.Builder
	b.WriteString(l.before + begin)
	names := make([]string, 0, len(l.entries))
	for name := range l.entries {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if m := counts.FindStringSubmatch(l.entries[name]); m != nil {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name, m[1], m[2])
		}
	}
	for _, name := range names {
		fmt.Fprintf(&b, "\n#### %s\n\n%s", name, l.entries[name])
	}
	return b.String() + end + l.after
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
