package console_test

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
)

// rig is a console over outboxes in memory, behind a server.
type rig struct {
	*testing.T
	st      *memstore.Store
	console *console.Console
	server  *httptest.Server
	client  *http.Client
	prefix  string
}

// roleHeader names the role of a request of a test.
const roleHeader = "X-Test-Role"

func newRig(t *testing.T, prefix string, o *console.Options) *rig {
	t.Helper()
	r := &rig{T: t, st: memstore.New(&memstore.Options{Lanes: 8}), prefix: prefix}
	if o == nil {
		o = &console.Options{}
	}
	if o.Authenticate == nil {
		o.Authenticate = func(req *http.Request) (console.User, error) {
			role := console.Role(req.Header.Get(roleHeader))
			if role == "" {
				role = console.Admin
			}
			return console.User{Name: "ann", Role: role}, nil
		}
	}
	r.console = console.New([]console.Outbox{{Name: "shop", Store: r.st, Office: r.st.Office()}}, o)
	if err := r.console.Check(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.console.Close)
	mux := http.NewServeMux()
	switch {
	case prefix == "":
		mux.Handle("/", r.console)
	case o.Prefix != "":
		mux.Handle(prefix+"/", r.console)
	default:
		mux.Handle(prefix+"/", http.StripPrefix(prefix, r.console))
	}
	r.server = httptest.NewServer(mux)
	t.Cleanup(r.server.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	r.client = &http.Client{Jar: jar, Timeout: time.Minute}
	return r
}

// die enqueues messages and makes dead letters of them.
func (r *rig) die(code, text string, msgs ...postrider.Message) {
	r.Helper()
	ctx := r.Context()
	if err := r.st.Enqueue(ctx, msgs...); err != nil {
		r.Fatal(err)
	}
	const boot = "boot"
	grant, err := r.st.Lease(ctx, store.LeaseRequest{BootID: boot, Instance: "relay <i>1</i>", TTL: time.Minute, MaxLanes: 100})
	if err != nil {
		r.Fatal(err)
	}
	for _, l := range grant.Lanes {
		batches, err := r.st.Read(ctx, []store.LaneRead{{Lane: l.Lane, Epoch: l.Epoch, MaxRecords: 100, MaxBytes: 1 << 20}})
		if err != nil {
			r.Fatal(err)
		}
		s := store.Settlement{BootID: boot, Lane: l.Lane, Epoch: l.Epoch}
		for _, b := range batches {
			s.Position = b.Position
			captured := map[string]bool{}
			for i, m := range b.Messages {
				p := store.Park{Seq: b.Meta[i].Seq, Message: m, State: store.Dead, Captures: m.Key != "", Attempts: 3, Class: "rejected", Code: code, Error: text}
				if captured[m.Key] {
					p = store.Park{Seq: b.Meta[i].Seq, Message: m, State: store.Waiting}
				}
				captured[m.Key] = m.Key != ""
				s.Park = append(s.Park, p)
			}
		}
		if len(s.Park) == 0 {
			continue
		}
		if lost, err := r.st.Settle(ctx, []store.Settlement{s}); err != nil || len(lost) > 0 {
			r.Fatal(lost, err)
		}
	}
	if _, err := r.st.Lease(ctx, store.LeaseRequest{BootID: boot, Instance: "relay", TTL: time.Minute, Leave: true}); err != nil {
		r.Fatal(err)
	}
}

// get returns a page.
func (r *rig) get(path string, header ...string) (int, string) {
	r.Helper()
	return r.send(http.MethodGet, path, nil, header...)
}

func (r *rig) send(method, path string, form url.Values, header ...string) (int, string) {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), method, r.server.URL+r.prefix+path, strings.NewReader(form.Encode()))
	if err != nil {
		r.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

var tokenField = regexp.MustCompile(`name="token" value="([0-9a-f]{64})"`)

// token returns that of a form on a page.
func (r *rig) token(path string, header ...string) string {
	r.Helper()
	_, body := r.get(path, header...)
	found := tokenField.FindStringSubmatch(body)
	if found == nil {
		r.Fatalf("%s has no form:\n%s", path, body)
	}
	return found[1]
}

// serve puts a console that is no part of a rig behind a server.
func (r *rig) serve(c *console.Console) {
	r.Helper()
	r.server = httptest.NewServer(c)
	r.Cleanup(r.server.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.Fatal(err)
	}
	r.client = &http.Client{Jar: jar, Timeout: time.Minute}
}

func noteWith(f func(console.Read)) func(context.Context, console.Read) error {
	return func(_ context.Context, r console.Read) error { f(r); return nil }
}
