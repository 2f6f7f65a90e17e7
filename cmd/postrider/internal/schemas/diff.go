package schemas

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/schema/evolve"
)

// change is one place in which two schemas differ.
type change struct {
	Path string          `json:"path"` // a JSON pointer, or the number of a line in either text
	Old  json.RawMessage `json:"old,omitempty"`
	New  json.RawMessage `json:"new,omitempty"`
}

func (a *App) diff() *cobra.Command {
	var r rules
	cmd := &cobra.Command{
		Use: "diff SUBJECT [FROM [TO]]", Short: "Show what changed between two versions, and what it breaks",
		Long: "Show the places in which two versions of a schema differ, by default the last two, and what\n" +
			"each of them refuses of the other's documents. The exit code does not depend on it: see check.",
		Args: between(1, 3, "a subject, and up to two versions"),
		RunE: func(_ *cobra.Command, args []string) error { return a.runDiff(args, &r) },
	}
	r.flags(cmd)
	return cmd
}

func (a *App) runDiff(args []string, r *rules) error {
	langs, err := r.languages()
	if err != nil {
		return err
	}
	f, err := a.read()
	if err != nil {
		return err
	}
	versions, err := f.of(args[0])
	if err != nil {
		return err
	}
	if len(args) == 1 {
		if len(versions) < 2 {
			return exit.Usagef("schemas %s: %s has one version: add the next one, then compare", f.place, args[0])
		}
		args = append(args, strconv.Itoa(int(versions[len(versions)-2].Version)))
	}
	from, err := f.version(args[0], args[1])
	if err != nil {
		return err
	}
	to, err := f.version(args[0], append(args, "")[2])
	if err != nil {
		return err
	}
	back, err := evolve.Compare(langs, from, to)
	if err != nil {
		return open.WrongSchemas(f.place, err)
	}
	forth, err := evolve.Compare(langs, to, from)
	if err != nil {
		return open.WrongSchemas(f.place, err)
	}
	found := struct {
		Subject string              `json:"subject"`
		From    int32               `json:"from"`
		To      int32               `json:"to"`
		Changes []change            `json:"changes"`
		Breaks  []evolve.Comparison `json:"breaks"`
	}{args[0], from.Version, to.Version, changesOf(from.Text, to.Text), []evolve.Comparison{}}
	for _, c := range []evolve.Comparison{back, forth} {
		if len(c.Findings) > 0 {
			found.Breaks = append(found.Breaks, c)
		}
	}
	return a.Print(found, func(w *tabwriter.Writer) {
		if len(found.Changes) == 0 {
			output.Row(w, "no difference")
		}
		for i, c := range found.Changes {
			switch {
			case c.Old == nil:
				output.Row(w, "+ "+c.Path, counterpart(found.Changes, i))
			case c.New == nil:
				output.Row(w, "- "+c.Path, counterpart(found.Changes, i))
			default:
				old, now := around(string(c.Old), string(c.New))
				output.Row(w, "~ "+c.Path, old+" -> "+now)
			}
		}
		one := evolve.Result{Subject: found.Subject, Comparisons: found.Breaks}
		findings(w, &one)
	})
}

// mostShown is how much of a value is shown, and dots are the sign that it was cut.
const (
	mostShown = 80
	dots      = "..."
)

func short(text json.RawMessage) string {
	if r := []rune(string(text)); len(r) > mostShown {
		return string(r[:mostShown-len(dots)]) + dots
	}
	return string(text)
}

// counterpart cuts a line that one text has to the part in which it differs from the line
// that the other has in its place: the n-th removed line of a run is replaced by its n-th new one.
func counterpart(all []change, at int) string {
	isNew := all[at].Old == nil
	from, to := at, at
	for from > 0 && (all[from-1].Old == nil) == isNew {
		from--
	}
	for to < len(all) && (all[to].Old == nil) == isNew {
		to++
	}
	other := to + at - from // removed lines come before the new ones
	if isNew {
		before := from
		for before > 0 && all[before-1].New == nil {
			before--
		}
		if other = before + at - from; other >= from {
			return short(all[at].New)
		}
		_, now := around(string(all[other].Old), string(all[at].New))
		return now
	}
	if other >= len(all) || all[other].Old != nil {
		return short(all[at].Old)
	}
	old, _ := around(string(all[at].Old), string(all[other].New))
	return old
}

// shownBefore is how much of what two texts have in common stands before their difference.
const shownBefore = 20

// around cuts both texts to the part where they differ.
func around(old, now string) (string, string) {
	a, b := []rune(old), []rune(now)
	if len(a) <= mostShown && len(b) <= mostShown {
		return old, now
	}
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	cut := func(all []rune) string {
		from := 0
		if same > shownBefore+len(dots) {
			from = same - shownBefore
		}
		text := short([]byte(string(all[from:])))
		if from > 0 {
			return dots + text
		}
		return text
	}
	return cut(a), cut(b)
}

// changesOf compares two documents, or the lines of two texts that are not JSON.
func changesOf(from, to []byte) []change {
	var a, b any
	if json.Unmarshal(from, &a) != nil || json.Unmarshal(to, &b) != nil {
		return linesOf(string(from), string(to))
	}
	all := []change{}
	differ("", a, b, &all)
	return all
}

// maxTable bounds the table of common lines; larger texts are compared as a whole.
const maxTable = 4 << 20

// linesOf finds the lines that one text has and the other has not, in the order of the texts.
func linesOf(from, to string) []change {
	a, b := strings.Split(from, "\n"), strings.Split(to, "\n")
	first := 0
	for first < len(a) && first < len(b) && a[first] == b[first] {
		first++
	}
	a, b = a[first:], b[first:]
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	common := make([][]int32, len(a)+1) // lines in common of what follows
	if (len(a)+1)*(len(b)+1) <= maxTable {
		for i := len(a); i >= 0; i-- {
			common[i] = make([]int32, len(b)+1)
			for j := len(b) - 1; j >= 0 && i < len(a); j-- {
				if common[i][j] = max(common[i+1][j], common[i][j+1]); a[i] == b[j] {
					common[i][j] = common[i+1][j+1] + 1
				}
			}
		}
	} else {
		common = nil
	}
	all := []change{}
	add := func(line int, old, now json.RawMessage) {
		all = append(all, change{Path: "line " + itoa(first+line+1), Old: old, New: now})
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case common != nil && i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && (common == nil || common[i+1][j] >= common[i][j+1]):
			add(i, encoded(strings.TrimSpace(a[i])), nil)
			i++
		default:
			add(j, nil, encoded(strings.TrimSpace(b[j])))
			j++
		}
	}
	return all
}

func differ(at string, a, b any, all *[]change) {
	switch {
	case reflect.DeepEqual(a, b):
		return
	case isObject(a) && isObject(b):
		x, _ := a.(map[string]any)
		y, _ := b.(map[string]any)
		var names []string
		for name := range x {
			names = append(names, name)
		}
		for name := range y {
			if _, ok := x[name]; !ok {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			path := at + "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
			old, was := x[name]
			now, is := y[name]
			switch {
			case !was:
				*all = append(*all, change{Path: path, New: encoded(now)})
			case !is:
				*all = append(*all, change{Path: path, Old: encoded(old)})
			default:
				differ(path, old, now, all)
			}
		}
		return
	case isList(a) && isList(b):
		x, _ := a.([]any)
		y, _ := b.([]any)
		if len(x) == len(y) {
			for i := range x {
				differ(at+"/"+itoa(i), x[i], y[i], all)
			}
			return
		}
	}
	*all = append(*all, change{Path: at, Old: encoded(a), New: encoded(b)})
}

func isObject(v any) bool { _, ok := v.(map[string]any); return ok }
func isList(v any) bool   { _, ok := v.([]any); return ok }
func itoa(n int) string   { return strconv.Itoa(n) }

func encoded(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err.Error()))
	}
	return text
}
