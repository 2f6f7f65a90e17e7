package console_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// broken is an office of which some answers fail or wait, and which counts what it is asked.
type broken struct {
	ops.Admin
	asked, listed atomic.Int32
	wait, listing chan struct{}
}

func (b *broken) Parked(context.Context, ops.ParkedQuery) ([]ops.ParkedRecord, error) {
	b.asked.Add(1)
	return nil, errors.New("the database has gone")
}

// lister gives the list of pipes of a broken office.
type lister struct {
	pipes
	b *broken
}

type pipes struct{ ops.Pipes }

func (l lister) Pipes(context.Context) ([]ops.Pipe, error) {
	l.b.listed.Add(1)
	l.b.listing <- struct{}{}
	<-l.b.wait
	return nil, errors.New("the database has gone")
}

// rigOf is a console for an office of a test.
func rigOf(t *testing.T, st *memstore.Store, office *ops.Office, user func() (console.User, error)) *rig {
	t.Helper()
	c := console.New([]console.Outbox{{Name: "shop", Store: st, Office: office}, {Name: "stock", Store: st, Office: office}}, &console.Options{
		Authenticate: func(*http.Request) (console.User, error) { return user() },
		Extras:       []console.Extra{{Label: "Reload the shop", Do: func(context.Context, string) error { return nil }}},
	})
	t.Cleanup(c.Close)
	r := &rig{T: t, console: c, st: st}
	r.serve(c)
	return r
}

func ann() (console.User, error) { return console.User{Name: "ann", Role: console.Admin}, nil }

// While the database is away, pages do not ask one after another: the error of the last is theirs.
func TestErrorsAreRemembered(t *testing.T) {
	st := memstore.New(nil)
	office := st.Office()
	b := &broken{Admin: office.Admin, wait: make(chan struct{}), listing: make(chan struct{}, 9)}
	office.Admin = b
	office.Pipes = lister{b: b}
	r := rigOf(t, st, office, ann)
	began := time.Now()
	for range 3 {
		if status, body := r.get("/o/shop/keys"); status != http.StatusInternalServerError || !strings.Contains(body, "has gone") {
			t.Errorf("status %d\n%s", status, body)
		}
	}
	if n := b.asked.Load(); n != 1 && time.Since(began) < 2*time.Second {
		t.Errorf("three pages have asked %d times, want 1", n)
	}
	// The default pipe does not wait for the list of the others.
	done := make(chan int)
	go func() {
		resp, err := r.client.Get(r.server.URL + "/o/shop@audit/lanes")
		if err != nil {
			done <- 0
			return
		}
		resp.Body.Close()
		done <- resp.StatusCode
	}()
	select {
	case <-b.listing:
	case <-time.After(time.Minute):
		t.Fatal("nobody lists the pipes")
	}
	if status, body := r.get("/o/shop/lanes"); status != http.StatusOK {
		t.Errorf("status %d\n%s", status, body)
	}
	began = time.Now()
	close(b.wait)
	if status := <-done; status != http.StatusInternalServerError {
		t.Errorf("the other pipe has status %d", status)
	}
	if status, _ := r.get("/o/shop@audit/lanes"); status != http.StatusInternalServerError || b.listed.Load() != 1 && time.Since(began) < 2*time.Second {
		t.Errorf("status %d after %d lists, want 1", status, b.listed.Load())
	}
}

// The stream of figures ends for a user who may not see them any more.
func TestEventsEndWithTheRight(t *testing.T) {
	for name, then := range map[string]func() (console.User, error){
		"signed out": func() (console.User, error) { return console.User{}, errors.New("the token is unknown") },
		"no role":    func() (console.User, error) { return console.User{Name: "ann"}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			var out atomic.Bool
			st := memstore.New(nil)
			r := rigOf(t, st, st.Office(), func() (console.User, error) {
				if out.Load() {
					return then()
				}
				return ann()
			})
			resp, err := r.client.Get(r.server.URL + "/o/shop/events")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			events := 0
			for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "data: ") {
					events++
					out.Store(true)
				}
				if events > 3 {
					t.Fatal("the stream continues")
				}
			}
			if events != 1 {
				t.Errorf("%d events came, want 1", events)
			}
		})
	}
}

// A button of the whole program is for an admin of every outbox.
func TestExtrasNeedEveryOutbox(t *testing.T) {
	for name, c := range map[string]struct {
		user console.User
		may  bool
	}{
		"all": {console.User{Name: "ann", Role: console.Admin}, true},
		"one": {console.User{Name: "ann", Role: console.Operator, Roles: map[string]console.Role{"shop": console.Admin}}, false},
	} {
		st := memstore.New(nil)
		r := rigOf(t, st, st.Office(), func() (console.User, error) { return c.user, nil })
		_, body := r.get("/o/shop/")
		if strings.Contains(body, "Reload the shop") != c.may {
			t.Errorf("%s: the button is wrong:\n%s", name, body)
		}
		form := url.Values{"extra": {"0"}, "token": {r.token("/o/shop/do/pause?key=k")}}
		status, body := r.send(http.MethodPost, "/o/shop/extra", form)
		if (status == http.StatusOK) != c.may || !c.may && status != http.StatusForbidden {
			t.Errorf("%s: status %d\n%s", name, status, body)
		}
	}
}

// counting is a doctor that counts his examinations.
type counting struct{ n atomic.Int32 }

func (d *counting) Examine(context.Context, ops.ExamineRequest) ([]ops.Finding, error) {
	d.n.Add(1)
	return nil, nil
}

// The page that a click on "Examine again" leads to may be loaded again without examining.
func TestExamineOnce(t *testing.T) {
	st := memstore.New(nil)
	office := st.Office()
	office.Doctor = &counting{}
	r := rigOf(t, st, office, ann)
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := r.client.Get(r.server.URL + "/o/shop/doctor?now=1")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if to := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || !strings.HasSuffix(to, "/doctor") {
		t.Errorf("status %d to %s", resp.StatusCode, to)
	}
}

// Browsers change line breaks in the fields of forms: errors are selected by one line, and a key
// with a line break by the command.
func TestLineBreaks(t *testing.T) {
	r := newRig(t, "", nil)
	r.die("", "cannot reach the shop:\nit is closed", postrider.Message{Topic: "orders"})
	if _, body := r.get("/o/shop/dead"); !hasLink(body, "do/retry?error=cannot+reach+the+shop%3A&topic=orders") {
		t.Errorf("the cause selects by %q", linksOf(body))
	}
	_, body := r.get("/o/shop/do/pause?key=a%0Ab")
	if strings.Contains(body, "<form method=\"post\"") || !strings.Contains(body, "use the command below") || !strings.Contains(body, "postrider pause") {
		t.Errorf("the form is\n%s", body)
	}
}

// A program that signs people in has a button on every page that signs them out.
func TestSignOut(t *testing.T) {
	const button = `<form method="post" action="/session/end"><button`
	for path, want := range map[string]bool{"/session/end": true, "": false} {
		r := newRig(t, "", &console.Options{Logout: path})
		for _, page := range []string{"", "dead", "nothing"} {
			if _, body := r.get("/o/shop/" + page); strings.Contains(body, button) != want || strings.Contains(body, "Sign out") != want {
				t.Errorf("page %q with %q:\n%s", page, path, body)
			}
		}
	}
}
