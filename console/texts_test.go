package console_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// finder knows the holds of each key, and no message.
type finder struct{ holds []ops.Hold }

func (f finder) Message(_ context.Context, q ops.MessageQuery) (ops.MessageLife, error) {
	return ops.MessageLife{}, fmt.Errorf("message %s: %w", q.ID, store.ErrNotFound)
}

func (f finder) Key(_ context.Context, key string) (ops.KeyLife, error) {
	return ops.KeyLife{Key: key, Lane: 3, Holds: f.holds}, nil
}

// The page of a key resumes what is paused: the key, its lane, or both.
func TestPageOfAKeyResumesWhatIsPaused(t *testing.T) {
	const key, lane, pause = "do/resume?key=k\"", "do/resume?lane=3\"", "do/pause?key=k\""
	for _, c := range []struct {
		holds []ops.Hold
		says  string
		links []string
	}{
		{nil, "The key is free.", []string{pause}},
		{[]ops.Hold{{Lane: 3, Key: "k"}}, "The key is paused.", []string{key}},
		{[]ops.Hold{{Lane: 3}}, "Its lane is paused.", []string{lane, pause}},
		{[]ops.Hold{{Lane: 3}, {Lane: 3, Key: "k"}}, "The key and its lane are paused.", []string{key, lane}},
	} {
		st := memstore.New(nil)
		office := st.Office()
		office.Finder = finder{c.holds}
		_, body := rigOf(t, st, office, ann).get("/o/shop/key?key=k")
		if !strings.Contains(body, c.says) {
			t.Errorf("holds %+v: the page does not say %q:\n%s", c.holds, c.says, body)
		}
		for _, link := range []string{key, lane, pause} {
			if got, want := strings.Contains(body, link), strings.Contains(strings.Join(c.links, " "), link); got != want {
				t.Errorf("holds %+v: link %s is %v, want %v", c.holds, link, got, want)
			}
		}
	}
}

// A key that is a UUID is found by the search: the page that knows no such message leads to it, with
// the letters that were typed.
func TestKeyThatIsAUUID(t *testing.T) {
	const key = "0190A6F2-0000-7000-8000-00000000ABCD"
	for name, c := range map[string]struct {
		finder ops.Finder
		status int
		link   string
	}{
		"finder":    {finder{}, http.StatusNotFound, "shop/key?key=" + key},
		"no finder": {nil, http.StatusUnprocessableEntity, "shop/dead?key=" + key},
	} {
		st := memstore.New(nil)
		office := st.Office()
		office.Finder = c.finder
		r := rigOf(t, st, office, ann)
		status, body := r.get("/o/shop/find?q=" + key)
		if status != c.status || !strings.Contains(body, c.link+"\"") {
			t.Errorf("%s: status %d, no link to %s:\n%s", name, status, c.link, body)
		}
		if _, body = r.get("/o/shop/message?seq=7"); strings.Contains(body, "?key=") {
			t.Errorf("%s: an unknown number leads to a key:\n%s", name, body)
		}
	}
}

// told is an office with a relay that reports trouble.
type told struct {
	ops.Admin
	instance ops.Instance
}

func (a told) Status(context.Context) (ops.Status, error) {
	return ops.Status{Instances: []ops.Instance{a.instance}}, nil
}

// Only an outage is told as one: before a brake or the cap of parked keys attempts are used up.
func TestVerdictNamesTheTrouble(t *testing.T) {
	const down, braked, capped = "A destination is not reachable", "A destination rejects all messages", "Lanes are paused: too many keys are set aside"
	brake, lanes := `destination "orders" is held: it rejects all messages`, "2 lanes are paused: too many keys are set aside"
	for _, c := range []struct {
		instance ops.Instance
		want     string
	}{
		{ops.Instance{Held: []store.Held{{Destination: "orders", Error: "gone"}}, Trouble: []string{"destination orders is down", brake, lanes}}, down},
		{ops.Instance{Trouble: []string{"sink is down"}}, down},
		{ops.Instance{Trouble: []string{lanes, brake}}, braked},
		{ops.Instance{Trouble: []string{"1 lane is paused: too many keys are set aside"}}, capped},
	} {
		c.instance.Alive, c.instance.Name = true, "a"
		st := memstore.New(nil)
		office := st.Office()
		office.Admin = told{office.Admin, c.instance}
		_, body := rigOf(t, st, office, ann).get("/o/shop/")
		for _, text := range []string{down, braked, capped} {
			if got := strings.Contains(body, text); got != (text == c.want) {
				t.Errorf("%+v: %q is told: %v", c.instance, text, got)
			}
		}
	}
}
