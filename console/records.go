package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// maxSingles is how many records are acted on where the store has no orders.
const maxSingles = 100

// noun is what an act on records concerns.
func noun(kind store.ActKind, n int64) string {
	one, many := "dead letter", "dead letters"
	switch kind {
	case store.ActSkip:
		one, many = "message that holds its key", "messages that hold their keys"
	case store.ActReplay:
		one, many = "settled message", "settled messages"
	case store.ActRetry, store.ActDiscard, store.ActPause, store.ActResume:
	}
	if n == 1 {
		return one
	}
	return many
}

func title(kind store.ActKind) string { return strings.ToUpper(string(kind[:1])) + string(kind[1:]) }

func warningOf(kind store.ActKind) string {
	switch kind {
	case store.ActDiscard:
		return "They are removed for ever and have no effect anywhere. Their keys are released. This cannot be undone."
	case store.ActSkip:
		return "Their keys are released with a gap: the next message of each key announces it. The messages become dead letters that can still be retried, out of order."
	case store.ActReplay:
		return "They are sent once more with their ids. A consumer with an inbox drops the ids that it has had; any other consumer applies them twice."
	case store.ActRetry, store.ActPause, store.ActResume:
	}
	return "They are sent again with the same ids, each key in its order. One that fails again is a dead letter again."
}

// scope lists what a match selects, for a person.
func scope(m *ops.Match) (all []touch) {
	add := func(name, value string) {
		if value != "" {
			all = append(all, touch{name, value})
		}
	}
	if n := len(m.Seqs); n > 0 {
		var seqs []string
		for _, seq := range m.Seqs[:min(n, 12)] {
			seqs = append(seqs, "#"+strconv.FormatInt(seq, 10))
		}
		if n > len(seqs) {
			seqs = append(seqs, fmt.Sprintf("and %d more", n-len(seqs)))
		}
		add("Records", strings.Join(seqs, ", "))
	}
	add("Ids", strings.Join(m.IDs, ", "))
	add("Topic", m.Topic)
	add("Key", m.Key)
	add("Type", m.Type)
	add("Class", m.Class)
	add("Code", m.Code)
	if m.Error != "" {
		add("Error contains", m.Error)
	}
	if m.Lane != nil {
		add("Lane", strconv.Itoa(int(*m.Lane)))
	}
	if m.Versions != (ops.Versions{}) {
		add("Versions", fmt.Sprintf("%d to %d", m.Versions.First, cmp.Or(m.Versions.Last, m.Versions.First)))
	}
	if !m.Since.IsZero() {
		add("Since", stamp(m.Since)+" UTC")
	}
	if !m.Until.IsZero() {
		add("Before", stamp(m.Until)+" UTC")
	}
	if m.All {
		add("Selection", "all of them, without a filter")
	}
	return all
}

// orderOf reads an order from a form.
func (q *request) orderOf(kind store.ActKind, v url.Values, reason string) (ops.Order, error) {
	m, err := matchOf(v)
	if err != nil {
		return ops.Order{}, err
	}
	o := ops.Order{Kind: kind, Match: m, Actor: q.user.Name, Reason: reason}
	if text := v.Get("rate"); text != "" {
		if o.Rate, err = strconv.ParseFloat(text, 64); err != nil {
			return o, &refusal{http.StatusBadRequest, "rate must be a number of records per second; 0 for no limit"}
		}
	}
	if topic := strings.TrimSpace(v.Get("set_topic")); topic != "" {
		o.Edit.Topic = topic
	}
	return o, o.Validate()
}

func (q *request) planRecords(kind store.ActKind, v url.Values) (*intent, error) {
	if kind == store.ActReplay && len(valuesOf(must(matchOf(v)))) == 0 {
		return &intent{Title: "Replay", Nothing: "no messages are selected: choose a topic, a key or a time on the page of pipes"}, nil
	}
	o, err := q.orderOf(kind, v, "to count")
	if err != nil {
		return nil, err
	}
	in := &intent{Fields: valuesOf(&o.Match), Warning: warningOf(kind), Danger: kind == store.ActDiscard || kind == store.ActSkip}
	words := append(verb(kind), matchFlags(&o.Match)...)
	words = append(words, "--reason", "WHY")
	var lanes int
	var n int64
	if q.place.office.Has(ops.CanOrder) {
		plan, since, err := q.counted(o)
		if err != nil {
			return nil, fmt.Errorf("count the records: %w", err)
		}
		if !since.IsZero() {
			return q.stillCounting(kind, &o.Match, since, words), nil
		}
		n, lanes = plan.Records, len(plan.Lanes)
		in.Rate, in.Topic = "0", kind == store.ActRetry
		if kind == store.ActReplay {
			in.Rate = "1000"
		}
		words = append(words, "--yes")
	} else {
		found, more, err := q.singles(kind, &o.Match)
		if err != nil {
			return nil, err
		}
		n = int64(len(found))
		m := ops.Match{Seqs: found}
		in.Fields = valuesOf(&m)
		seen := map[store.Lane]bool{}
		lanes = len(seen)
		if more {
			in.Warning += fmt.Sprintf(" This store acts on at most %d records at a time: repeat it for the rest.", maxSingles)
		}
		words = append(verb(kind), matchFlags(&m)...)
		words = append(words, "--reason", "WHY")
	}
	in.Counted = n
	if takes(kind) {
		in.Fields.Set("counted", strconv.FormatInt(n, 10))
	}
	in.Command = q.place.command(words...)
	in.Title = title(kind) + " " + num(n) + " " + noun(kind, n)
	in.Button = in.Title
	in.Touches = scope(&o.Match)
	if lanes > 0 {
		in.Touches = append(in.Touches, touch{"Counted now", plural(int(n), "record", "records") + " in " + plural(lanes, "lane", "lanes")})
	} else {
		in.Touches = append(in.Touches, touch{"Counted now", plural(int(n), "record", "records")})
	}
	if n == 0 {
		in.Nothing = "nothing matches now: it was sent, decided by someone else, or the filter is too narrow"
	}
	return in, nil
}

// stillCounting is what a page says until the records are counted. It asks again by itself.
func (q *request) stillCounting(kind store.ActKind, m *ops.Match, since time.Time, words []string) *intent {
	return &intent{
		Title: title(kind) + ": counting", Counting: true, Touches: scope(m), Command: q.place.command(words...),
		Nothing: fmt.Sprintf("The messages that match have been counted for %s. This page shows the number as soon as it is known. To stop counting, leave the page.", age(time.Since(since))),
	}
}

// takes reports whether an act takes messages out of their order, or away.
func takes(kind store.ActKind) bool { return kind == store.ActDiscard || kind == store.ActSkip }

// recount refuses an act that would concern more records than the person was shown.
func (q *request) recount(kind store.ActKind, v url.Values) error {
	counted, err := strconv.ParseInt(v.Get("counted"), 10, 64)
	if err != nil || counted < 0 {
		return &refusal{http.StatusBadRequest, "counted must be how many records the page has shown: open the page of the act and send its form"}
	}
	in, err := q.planRecords(kind, v)
	if err != nil {
		return err
	}
	if in.Counting {
		return &refusal{http.StatusServiceUnavailable, "nothing was done: the records are being counted once more, which takes longer than usual; send the form again"}
	}
	if in.Counted > counted {
		return &refusal{http.StatusConflict, fmt.Sprintf("nothing was done: %d records matched when the page was shown, and %d do now; open the page of the act again and look at them", counted, in.Counted)}
	}
	return nil
}

func must(m ops.Match, err error) *ops.Match {
	if err != nil {
		return &ops.Match{All: true} // the error is found again, and told
	}
	return &m
}

// singles returns the numbers of the dead letters that match, where the store has no orders.
func (q *request) singles(kind store.ActKind, m *ops.Match) (seqs []int64, more bool, err error) {
	if kind != store.ActRetry && kind != store.ActDiscard {
		return nil, false, q.place.office.Need(ops.CanOrder)
	}
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	var after int64
	if len(m.Seqs) > 0 {
		after = slices.Min(m.Seqs) - 1
	}
	all, err := q.place.office.Admin.Parked(ctx, ops.ParkedQuery{
		State: store.Dead, Topic: m.Topic, Key: m.Key, Code: m.Code, AfterSeq: after, Bare: true, Limit: window,
	})
	if err != nil {
		return nil, false, err
	}
	for i := range all {
		if !fits(m, &all[i]) {
			continue
		}
		if len(seqs) == maxSingles {
			return seqs, true, nil
		}
		seqs = append(seqs, all[i].Seq)
	}
	return seqs, len(all) == window, nil
}

func (q *request) carryRecords(kind store.ActKind, v url.Values, reason string) error {
	o, err := q.orderOf(kind, v, reason)
	if err != nil {
		return err
	}
	if takes(kind) {
		if err := q.recount(kind, v); err != nil {
			return err
		}
	}
	if !q.place.office.Has(ops.CanOrder) {
		return q.carrySingles(kind, &o.Match, reason)
	}
	if kind == store.ActReplay { // twice, it would have its effect twice where no inbox is
		if err := q.first(v.Get("once"), reason); err != nil {
			return err
		}
	}
	id, _, err := q.place.office.Orders.Order(q.ctx, o)
	if errors.Is(err, store.ErrNotFound) {
		return q.answer(navOf(string(kind)), done{Title: "Nothing matches any more", Back: navOf(string(kind))})
	}
	if err != nil {
		return err
	}
	q.place.forget()
	q.follow(q.place, id)
	return q.redirect("order?id=" + strconv.FormatInt(id, 10))
}

func (q *request) carrySingles(kind store.ActKind, m *ops.Match, reason string) error {
	seqs, _, err := q.singles(kind, m)
	if err != nil {
		return err
	}
	acts := make([]store.Act, len(seqs))
	for i, seq := range seqs {
		acts[i] = store.Act{Kind: kind, Seq: seq, Actor: q.user.Name, Reason: reason}
	}
	return q.execute(title(kind), "dead", acts, func(i int) string { return "#" + strconv.FormatInt(seqs[i], 10) })
}
