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
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/schema/evolve"
)

// change is one place in which two schemas differ.
type change struct {
	Path string          `json:"path"` // a JSON pointer
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
			return exit.Usagef("schemas %s: %s has one version: nothing to compare", f.place, args[0])
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
		return exit.With(exit.Usage, err)
	}
	forth, err := evolve.Compare(langs, to, from)
	if err != nil {
		return exit.With(exit.Usage, err)
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
		for _, c := range found.Changes {
			switch {
			case c.Old == nil:
				output.Row(w, "+ "+c.Path, short(c.New))
			case c.New == nil:
				output.Row(w, "- "+c.Path, short(c.Old))
			default:
				output.Row(w, "~ "+c.Path, short(c.Old)+" -> "+short(c.New))
			}
		}
		one := evolve.Result{Subject: found.Subject, Comparisons: found.Breaks}
		findings(w, &one)
	})
}

func short(text json.RawMessage) string {
	if r := []rune(string(text)); len(r) > 80 {
		return string(r[:77]) + "..."
	}
	return string(text)
}

// changesOf compares two documents; texts that are not JSON are one place.
func changesOf(from, to []byte) []change {
	var a, b any
	if json.Unmarshal(from, &a) != nil || json.Unmarshal(to, &b) != nil {
		if string(from) == string(to) {
			return []change{}
		}
		return []change{{Path: "", Old: encoded(string(from)), New: encoded(string(to))}}
	}
	all := []change{}
	differ("", a, b, &all)
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
