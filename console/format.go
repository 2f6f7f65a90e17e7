package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// functions are what the pages format with. None makes markup of text.
func functions() template.FuncMap {
	return template.FuncMap{
		"age": age, "ago": ago, "num": numOf, "fig": fig, "stamp": stamp, "rate": rateText, "iso": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"clock":  func(t time.Time) string { return t.UTC().Format("15:04:05") },
		"moment": moment, "query": query, "seq": func(n int64) string { return strconv.FormatInt(n, 10) },
		"until": func(now time.Time, d time.Duration) time.Time { return now.Add(d) },
		"dict":  dict, "visible": visible, "short": shortID, "complaints": func(i ops.Instance) []string { return i.Complaints() },
		"state": func(s store.State) string { return s.String() }, "json": func(raw json.RawMessage) string { return string(raw) },
		"add": func(a, b int) int { return a + b }, "add64": func(a int64, b int) int64 { return a + int64(b) },
		"held": ops.HeldText, "severity": func(s ops.Severity) string { return s.String() },
		"lane": func(l *store.Lane) string { return strconv.Itoa(int(*l)) }, "count": func(n *int64) string { return num(*n) },
		"plural": plural,
	}
}

// dict gives a part of a page its values by name.
func dict(pairs ...any) (map[string]any, error) {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is not a name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

// moment is a time on an axis from since to till: with its day where the axis is long.
func moment(at, since, till time.Time) string {
	if till.Sub(since) < 12*time.Hour {
		return at.UTC().Format("15:04:05")
	}
	return at.UTC().Format("2 Jan 15:04")
}

// age is a duration as people read it: two units at most.
func age(d time.Duration) string {
	switch {
	case d <= 0:
		return "0 s"
	case d < time.Second:
		return strconv.FormatInt(max(d.Milliseconds(), 1), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return pair(int(d.Minutes()), "min", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return pair(int(d.Hours()), "h", int(d.Minutes())%60, "min")
	}
	return pair(int(d.Hours())/24, "d", int(d.Hours())%24, "h")
}

func pair(a int, unitA string, b int, unitB string) string {
	if b == 0 {
		return strconv.Itoa(a) + " " + unitA
	}
	return strconv.Itoa(a) + " " + unitA + " " + strconv.Itoa(b) + " " + unitB
}

// ago is how long a moment is past, or ahead.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	if d := now.Sub(t); d >= 0 {
		return age(d.Round(time.Second)) + " ago"
	}
	return "in " + age(t.Sub(now).Round(time.Second))
}

// stamp is a moment to the second, in UTC.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// num is a number with thin spaces between its thousands.
func num[T int | int64](n T) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteRune('\u202f')
		}
		b.WriteRune(d)
	}
	return sign + b.String()
}

// numOf is num for the numbers of a page.
func numOf(n any) (string, error) {
	switch n := n.(type) {
	case int:
		return num(n), nil
	case int64:
		return num(n), nil
	}
	return "", fmt.Errorf("num: %T is not a number", n)
}

// fig is a figure, with "at least" before a lower bound.
func fig(f figure) string {
	switch {
	case !f.Known:
		return "–"
	case f.Bound:
		return "≥\u202f" + num(f.N)
	}
	return num(f.N)
}

// rateText is messages per second; below zero it is unknown.
func rateText(r float64) string {
	switch {
	case r < 0:
		return "–"
	case r < 0.05:
		return "0"
	case r < 10:
		return strconv.FormatFloat(r, 'f', 1, 64)
	}
	return num(int64(r + 0.5))
}

// shortID is enough of an id to tell it from its neighbours: the random part of a UUIDv7.
func shortID(id string) string {
	if len(id) == 36 {
		return "…" + id[24:]
	}
	return id
}

// query is the part of a URL behind the question mark, of pairs whose value is set: a text that is
// not empty, a number that is not 0. A text "0" is a key or a code like any other.
func query(pairs ...any) template.URL {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if !reflect.ValueOf(pairs[i+1]).IsZero() {
			v.Add(fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1]))
		}
	}
	return linkOf(v)
}

// linkOf is the part of a URL behind the question mark.
func linkOf(v url.Values) template.URL {
	if len(v) == 0 {
		return ""
	}
	return template.URL("?" + v.Encode()) //nolint:gosec // Encode escapes every name and value
}

// visible makes characters visible that a page would not show or that reorder text.
func visible(text string) string {
	if text == "" {
		return ""
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x00ad || r >= 0x200b && r <= 0x200f || r >= 0x2028 && r <= 0x202e ||
			r >= 0x2060 && r <= 0x206f || r == 0xfeff || r == 0xfffd || r >= 0xfff9 && r <= 0xfffb || r >= 0xe0000 && r <= 0xe007f:
			fmt.Fprintf(&b, "␛%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
