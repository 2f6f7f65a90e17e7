package console

import (
	"cmp"
	"context"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/causes"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// deadBody is the page of dead letters.
type deadBody struct {
	Total    figure
	Looked   int   // records that were grouped
	More     bool  // there are records behind them
	Last     int64 // number of the last record that was looked at
	From     int64 // records behind this number were looked at
	Groups   []causes.Group
	Filter   ops.Match
	Filtered bool
	Records  []ops.ParkedRecord // of a filter
	Orders   bool               // acts on all that match are orders
	NoOrders string             // why not
	States   []string
	Query    template.URL // selects what the filter selects
	Further  template.URL // the same, behind the last record that was looked at
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

// lookAt returns the next dead letters by the parts of a filter that one index of the store has:
// a key, or a code and a topic.
func (q *request) lookAt(ctx context.Context, m *ops.Match, after int64) ([]ops.ParkedRecord, error) {
	look := ops.ParkedQuery{State: store.Dead, Key: m.Key, AfterSeq: after, Bare: true, Limit: window}
	if m.Key == "" {
		look.Code, look.Topic = m.Code, m.Topic
	}
	return q.place.office.Admin.Parked(ctx, look)
}

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
	all, err := q.lookAt(ctx, &m, after)
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
		body.Groups = causes.Of(all)
	}
	words := []string{"dead", "list"}
	if !body.Filtered {
		words = append(words, "--group")
	}
	for flag, value := range map[string]string{"--topic": m.Topic, "--key": m.Key, "--code": m.Code} {
		if value != "" {
			words = append(words, flag, value)
		}
	}
	p.Body, p.Command = body, q.place.command(words...)
	return q.show("dead", http.StatusOK, p)
}
