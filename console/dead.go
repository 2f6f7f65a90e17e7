package console

import (
	"cmp"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// cause is what dead letters have in common.
type cause struct {
	Code, Topic, Type string
	Error             string // normalised
}

// group are the dead letters of one cause.
type group struct {
	cause
	N        int
	Keys     int // keys that they hold
	Oldest   time.Time
	Newest   time.Time
	Example  ops.ParkedRecord
	Fragment string // the part of the error that all of them have
}

// deadBody is the page of dead letters.
type deadBody struct {
	Total    figure
	Looked   int   // records that were grouped
	More     bool  // there are records behind them
	Last     int64 // number of the last record that was looked at
	From     int64 // records behind this number were looked at
	Groups   []group
	Filter   ops.Match
	Filtered bool
	Records  []ops.ParkedRecord // of a filter
	Orders   bool               // acts on all that match are orders
	NoOrders string             // why not
	States   []string
	Query    template.URL // selects what the filter selects
	Further  template.URL // the same, behind the last record that was looked at
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

// normalised is an error without what differs from message to message.
func normalised(text string) string {
	for _, what := range []*regexp.Regexp{uuidIn, quotedIn, hexIn} {
		text = what.ReplaceAllString(text, differing)
	}
	return digitsIn.ReplaceAllStringFunc(text, func(found string) string {
		if tellsIn.MatchString(found) {
			return found
		}
		return differing
	})
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

// Selects reports whether a filter can tell the group from the other dead letters of its topic.
func (g *group) Selects() bool { return g.Code != "" || g.Fragment != "" }

func groupsOf(records []ops.ParkedRecord) []group {
	at := map[cause]int{}
	keys := map[cause]map[string]bool{}
	var all []group
	for _, r := range records {
		c := cause{r.Code, r.Message.Topic, r.Message.Type, normalised(r.Error)}
		i, ok := at[c]
		if !ok {
			i = len(all)
			at[c], keys[c] = i, map[string]bool{}
			all = append(all, group{cause: c, Example: r, Oldest: r.LastAttempt, Newest: r.LastAttempt, Fragment: fragment(c.Error)})
		}
		g := &all[i]
		g.N++
		if r.LastAttempt.Before(g.Oldest) {
			g.Oldest = r.LastAttempt
		}
		if r.LastAttempt.After(g.Newest) {
			g.Newest = r.LastAttempt
		}
		if r.Captures && r.Message.Key != "" {
			keys[c][r.Message.Key] = true
		}
		g.Keys = len(keys[c])
	}
	slices.SortStableFunc(all, func(a, b group) int { return cmp.Or(cmp.Compare(b.N, a.N), b.Newest.Compare(a.Newest)) })
	return all
}

// matchOf reads which records a URL or a form selects.
func matchOf(v url.Values) (ops.Match, error) {
	m := ops.Match{
		Topic: v.Get("topic"), Key: v.Get("key"), Type: v.Get("type"), Class: v.Get("class"), Code: v.Get("code"), Error: v.Get("error"),
		All: v.Get("all") != "",
	}
	for _, text := range v["seq"] {
		seq, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seq < 1 {
			return m, &refusal{http.StatusBadRequest, "a record number is invalid: use one of the list of dead letters"}
		}
		m.Seqs = append(m.Seqs, seq)
	}
	for _, id := range v["id"] {
		m.IDs = append(m.IDs, strings.TrimSpace(id))
	}
	if text := v.Get("lane"); text != "" {
		n, err := strconv.ParseInt(text, 10, 16)
		if err != nil || n < 0 {
			return m, &refusal{http.StatusBadRequest, "lane must be a number from 0"}
		}
		lane := store.Lane(n)
		m.Lane = &lane
	}
	for name, to := range map[string]*int64{"first": &m.Versions.First, "last": &m.Versions.Last} {
		text := v.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return m, &refusal{http.StatusBadRequest, name + " must be a version: a number above 0"}
		}
		*to = n
	}
	for name, to := range map[string]*time.Time{"since": &m.Since, "until": &m.Until} {
		text := v.Get(name)
		if text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return m, &refusal{http.StatusBadRequest, name + " must be a time such as 2026-01-31T12:00:00Z"}
		}
		*to = t
	}
	return m, nil
}

// valuesOf is a match as the fields of a form.
func valuesOf(m *ops.Match) url.Values {
	v := url.Values{}
	add := func(name, value string) {
		if value != "" {
			v.Add(name, value)
		}
	}
	for _, seq := range m.Seqs {
		add("seq", strconv.FormatInt(seq, 10))
	}
	for _, id := range m.IDs {
		add("id", id)
	}
	add("topic", m.Topic)
	add("key", m.Key)
	add("type", m.Type)
	add("class", m.Class)
	add("code", m.Code)
	add("error", m.Error)
	if m.Lane != nil {
		add("lane", strconv.Itoa(int(*m.Lane)))
	}
	if m.Versions != (ops.Versions{}) {
		add("first", strconv.FormatInt(m.Versions.First, 10))
		add("last", strconv.FormatInt(m.Versions.Last, 10))
	}
	if !m.Since.IsZero() {
		add("since", m.Since.Format(time.RFC3339Nano))
	}
	if !m.Until.IsZero() {
		add("until", m.Until.Format(time.RFC3339Nano))
	}
	if m.All {
		add("all", "1")
	}
	return v
}

// fits reports whether a parked record is one that a match selects.
func fits(m *ops.Match, r *ops.ParkedRecord) bool {
	msg := &r.Message
	return (len(m.Seqs) == 0 || slices.Contains(m.Seqs, r.Seq)) && (len(m.IDs) == 0 || slices.Contains(m.IDs, msg.ID)) &&
		(m.Topic == "" || m.Topic == msg.Topic) && (m.Key == "" || m.Key == msg.Key) && (m.Type == "" || m.Type == msg.Type) &&
		(m.Class == "" || m.Class == r.Class) && (m.Code == "" || m.Code == r.Code) && strings.Contains(r.Error, m.Error) &&
		(m.Lane == nil || *m.Lane == r.Lane) && (m.Since.IsZero() || !msg.Time.Before(m.Since)) && (m.Until.IsZero() || msg.Time.Before(m.Until))
}

// shownRecords is how many records a page lists.
const shownRecords = 200

// dead shows the dead letters, grouped by cause, or those of a filter one by one.
func (q *request) dead() error {
	v := q.r.URL.Query()
	m, err := matchOf(v)
	if err != nil {
		return err
	}
	after, err := strconv.ParseInt(cmp.Or(v.Get("after"), "0"), 10, 64)
	if err != nil || after < 0 {
		return &refusal{http.StatusBadRequest, "after must be the number of a record"}
	}
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	all, err := q.place.office.Admin.Parked(ctx, ops.ParkedQuery{
		State: store.Dead, Topic: m.Topic, Key: m.Key, Code: m.Code, AfterSeq: after, Bare: true, Limit: window,
	})
	if err != nil {
		return err
	}
	p := q.frame("dead", "Dead letters")
	body := deadBody{Total: p.Dead, Looked: len(all), More: len(all) == window, From: after, Filter: m, Filtered: len(valuesOf(&m)) > 0}
	if len(all) > 0 {
		body.Last = all[len(all)-1].Seq
	}
	if err := q.place.office.Need(ops.CanOrder); err != nil {
		body.NoOrders = err.Error()
	} else {
		body.Orders = true
	}
	if body.Filtered {
		all = slices.DeleteFunc(all, func(r ops.ParkedRecord) bool { return !fits(&m, &r) })
		if len(all) > shownRecords {
			body.Last, body.More = all[shownRecords-1].Seq, true
			all = all[:shownRecords]
		}
		body.Records = all
		selected := valuesOf(&m)
		body.Query = linkOf(selected)
		selected.Set("after", strconv.FormatInt(body.Last, 10))
		body.Further = linkOf(selected)
	} else {
		body.Groups = groupsOf(all)
	}
	words := []string{"dead", "list"}
	for flag, value := range map[string]string{"--topic": m.Topic, "--key": m.Key, "--code": m.Code} {
		if value != "" {
			words = append(words, flag, value)
		}
	}
	p.Body, p.Command = body, q.place.command(words...)
	return q.show("dead", http.StatusOK, p)
}
