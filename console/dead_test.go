package console_test

import (
	"context"
	"html"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// linksOf are the targets of the links of a page.
func linksOf(body string) (all []string) {
	for _, part := range strings.Split(body, `href="`)[1:] {
		link, _, _ := strings.Cut(part, `"`)
		all = append(all, html.UnescapeString(link))
	}
	return all
}

func hasLink(body, want string) bool {
	for _, link := range linksOf(body) {
		if strings.HasSuffix(link, want) {
			return true
		}
	}
	return false
}

// A key, a code and a topic "0" stay in the links of acts, which would concern more without them.
func TestZeroIsAText(t *testing.T) {
	r := newRig(t, "", nil)
	r.die("0", "refused by the shop", postrider.Message{Topic: "0", Key: "0"})
	for page, links := range map[string][]string{
		"dead":         {"do/discard?code=0&error=refused+by+the+shop&topic=0"},
		"dead?key=0":   {"do/retry?key=0", "key?key=0"},
		"dead?code=0":  {"do/discard?code=0"},
		"dead?topic=0": {"do/discard?topic=0"},
		"keys":         {"do/skip?key=0"},
	} {
		_, body := r.get("/o/shop/" + page)
		for _, want := range links {
			if !hasLink(body, want) {
				t.Errorf("page %s has no link %s, but %q", page, want, linksOf(body))
			}
		}
	}
}

// The acts on all that match, and the next page, select by every field of the filter.
func TestLinksKeepTheFilter(t *testing.T) {
	r := newRig(t, "", nil)
	msgs := make([]postrider.Message, 201)
	for i := range msgs {
		msgs[i].Topic = "orders"
	}
	r.die("E1", "e", msgs...)
	for _, field := range []string{
		"class=rejected", "since=2020-01-31T12%3A00%3A00.123456789Z", "until=2099-01-31T12%3A00%3A00.5Z", "type=&topic=orders",
	} {
		_, body := r.get("/o/shop/dead?" + field)
		want := strings.TrimPrefix(field, "type=&")
		for _, act := range []string{"do/retry?", "do/discard?"} {
			if !hasLink(body, act+want) {
				t.Errorf("the page of %s has no link %s%s, but %q", field, act, want, linksOf(body))
			}
		}
		further := false
		for _, link := range linksOf(body) {
			further = further || strings.Contains(link, "dead?after=") && strings.HasSuffix(link, want)
		}
		if !further {
			t.Errorf("the page of %s has no link to the records behind: %q", field, linksOf(body))
		}
	}
}

// The time of a filter keeps the fraction of its second in forms and commands: without it the act
// concerns messages that were not meant.
func TestTimesKeepFractions(t *testing.T) {
	m := ops.Match{Since: time.Date(2026, 1, 31, 12, 0, 0, 123456789, time.UTC), Until: time.Date(2026, 1, 31, 12, 0, 1, 5e8, time.UTC)}
	const since, until = "2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:01.5Z"
	fields, flags := console.FieldsOf(&m)
	if fields.Get("since") != since || fields.Get("until") != until {
		t.Errorf("the fields are %v", fields)
	}
	if got := strings.Join(flags, " "); got != "--since "+since+" --until "+until {
		t.Errorf("the flags are %s", got)
	}
}

// A cause that no filter can tell from the rest of its topic has no acts of its own.
func TestCauseWithoutAFilter(t *testing.T) {
	r := newRig(t, "", nil)
	r.die("", "4711", postrider.Message{Topic: "orders"})
	r.die("", "the shop is closed", postrider.Message{Topic: "orders"})
	_, body := r.get("/o/shop/dead")
	if hasLink(body, "do/discard?topic=orders") || hasLink(body, "do/retry?topic=orders") {
		t.Errorf("an act on the whole topic is offered for one cause: %q", linksOf(body))
	}
	if !hasLink(body, "do/discard?error=the+shop+is+closed&topic=orders") {
		t.Errorf("the other cause has no act: %q", linksOf(body))
	}
}

// many is an office with as many dead letters as anybody likes. It counts what it hands over.
type many struct {
	ops.Admin
	*testing.T
	all []ops.ParkedRecord
}

func (m *many) Parked(_ context.Context, q ops.ParkedQuery) (found []ops.ParkedRecord, err error) {
	for _, r := range m.all {
		if r.Seq > q.AfterSeq && (q.Code == "" || q.Code == r.Code) && (q.Topic == "" || q.Topic == r.Message.Topic) && len(found) < q.Limit {
			found = append(found, r)
		}
	}
	return found, nil
}

// A page with a code and a topic looks at a bounded number of dead letters, and still finds the few
// that have both behind many that have one.
func TestCodeAndTopic(t *testing.T) {
	st := memstore.New(nil)
	office := *st.Office()
	m := &many{Admin: office.Admin, T: t}
	for i := range int64(5000) {
		m.all = append(m.all, ops.ParkedRecord{Seq: 1 + i, State: store.Dead, Code: "common", Message: postrider.Message{Topic: "busy"}})
	}
	m.all = append(m.all, ops.ParkedRecord{Seq: 6001, State: store.Dead, Code: "common", Message: postrider.Message{Topic: "rare"}},
		ops.ParkedRecord{Seq: 6002, State: store.Dead, Code: "rare", Message: postrider.Message{Topic: "busy"}})
	office.Admin = m
	r := rigOf(t, st, &office, ann)
	for filter, want := range map[string]string{"code=common&topic=rare": "#6001", "code=rare&topic=busy": "#6002", "code=rare&topic=rare": "None found."} {
		if _, body := r.get("/o/shop/dead?" + filter); !strings.Contains(body, want) {
			t.Errorf("dead?%s has no %s:\n%s", filter, want, body)
		}
	}
}
