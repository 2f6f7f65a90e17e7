// Package causes groups dead letters by what they have in common.
package causes

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// Cause is what dead letters have in common.
type Cause struct {
	Code, Topic, Type string
	Error             string // without what differs from message to message
}

// Group are the dead letters of one cause.
type Group struct {
	Cause
	N        int
	Keys     int // keys that they hold
	Oldest   time.Time
	Newest   time.Time
	Example  ops.ParkedRecord
	Fragment string // the part of the error that all of them have
}

// Selects reports whether a filter can tell the group from the other dead letters of its topic.
func (g *Group) Selects() bool { return g.Code != "" || g.Fragment != "" }

// Groups collects dead letters. The zero value has none. It is not safe for concurrent use.
type Groups struct {
	at   map[Cause]int
	keys []map[string]struct{}
	all  []Group
}

// Of groups the records, as [Groups.Sorted] returns them.
func Of(records []ops.ParkedRecord) []Group {
	var g Groups
	g.Add(records)
	return g.Sorted()
}

// Add takes in more records.
func (gs *Groups) Add(records []ops.ParkedRecord) {
	if gs.at == nil {
		gs.at = map[Cause]int{}
	}
	for _, r := range records {
		c := Cause{r.Code, r.Message.Topic, r.Message.Type, normalised(r.Error)}
		i, ok := gs.at[c]
		if !ok {
			i = len(gs.all)
			gs.at[c], gs.keys = i, append(gs.keys, map[string]struct{}{})
			gs.all = append(gs.all, Group{Cause: c, Example: r, Oldest: r.LastAttempt, Newest: r.LastAttempt, Fragment: fragment(c.Error)})
		}
		g := &gs.all[i]
		g.N++
		if r.LastAttempt.Before(g.Oldest) {
			g.Oldest = r.LastAttempt
		}
		if r.LastAttempt.After(g.Newest) {
			g.Newest = r.LastAttempt
		}
		if r.Captures && r.Message.Key != "" {
			gs.keys[i][r.Message.Key] = struct{}{}
		}
		g.Keys = len(gs.keys[i])
	}
}

// Sorted returns the groups, the largest first, and of equal ones the newest.
func (gs *Groups) Sorted() []Group {
	return slices.SortedStableFunc(slices.Values(gs.all), func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.N, a.N), b.Newest.Compare(a.Newest))
	})
}

var (
	uuidIn   = regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	quotedIn = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	hexIn    = regexp.MustCompile(`\b(0x)?[0-9a-fA-F]{8,}\b`)
	digitsIn = regexp.MustCompile(`\d+(\.\d+)*(:\d+)?`)
	tellsIn  = regexp.MustCompile(`^([1-5]\d\d|\d+(\.\d+){3}(:\d+)?)$`) // a status of HTTP, an address
)

// differing stands in an error for what differs from message to message.
const differing = "…"

// normalised is an error without what differs from message to message. Most errors have none of
// it, or digits only: an expression runs where a cheap look found what it needs.
func normalised(text string) string {
	if hexRun(text) >= minHex {
		text = hexIn.ReplaceAllString(replaceQuoted(uuidIn.ReplaceAllString(text, differing)), differing)
	} else {
		text = replaceQuoted(text)
	}
	if !strings.ContainsAny(text, "0123456789") {
		return text
	}
	return digitsIn.ReplaceAllStringFunc(text, func(found string) string {
		if tellsIn.MatchString(found) {
			return found
		}
		return differing
	})
}

func replaceQuoted(text string) string {
	if !strings.ContainsAny(text, `"'`) {
		return text
	}
	return quotedIn.ReplaceAllString(text, differing)
}

// minHex digits in a row are what uuidIn and hexIn begin with.
const minHex = 8

// hexRun is the length of the longest run of hexadecimal digits.
func hexRun(text string) (longest int) {
	run := 0
	for i := range len(text) {
		switch c := text[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
			run++
			longest = max(longest, run)
		default:
			run = 0
		}
	}
	return longest
}

// fragment is the longest part of a normalised error in which nothing differs; "" when it is too
// short to tell anything. It has no line break, which browsers change in the fields of forms.
func fragment(text string) string {
	longest := ""
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '…' || r == '\n' || r == '\r' }) {
		if len(part) > len(longest) {
			longest = part
		}
	}
	const tells = 4
	if len(strings.TrimSpace(longest)) < tells {
		return ""
	}
	return longest
}
