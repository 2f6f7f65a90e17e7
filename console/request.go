package console

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed static/*
var staticFiles embed.FS

// request is one request with its user and the pipe it is about.
type request struct {
	*Console
	w     http.ResponseWriter
	r     *http.Request
	ctx   context.Context
	root  string // way back to the console's root
	user  User
	role  Role
	place *place
}

// page is what the frame around every page needs.
type page struct {
	Title, Nav string
	Root, Base string // ways to the console's root and to the pages of the pipe
	User       User
	Role       Role
	Place      *place
	Outbox     string
	Pipe       string // the pipe's name, also of the default one
	Outboxes   []string
	Live       bool // the page shows the figures of a look, and says how old they are
	Sight      sight
	Dead       figure
	Command    string // that does or shows the same
	Token      string
	Span       string // query of the events, for charts of another time
	Reload     int    // seconds, for browsers without scripts; 0: never
	Body       any
	May        map[string]bool
	Lacks      map[string]string // why the store cannot "order", "hold" or "record"; "": it can
	Now        time.Time
	Logout     string
}

// figure is a number of which a bound may be known only.
type figure struct {
	N     int64
	Bound bool // N is a lower bound
	Known bool
}

func parsePages() (map[string]*template.Template, error) {
	frame, err := template.New("frame.html").Funcs(functions()).ParseFS(pageFiles, "pages/frame.html", "pages/parts.html")
	if err != nil {
		return nil, err
	}
	files, err := pageFiles.ReadDir("pages")
	if err != nil {
		return nil, err
	}
	pages := map[string]*template.Template{}
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".html")
		if name == "frame" || name == "parts" {
			continue
		}
		one, err := frame.Clone()
		if err == nil {
			one, err = one.ParseFS(pageFiles, "pages/"+f.Name())
		}
		if err != nil {
			return nil, err
		}
		pages[name] = one
	}
	return pages, nil
}

// arrive finds the pipe that the path names.
func (q *request) arrive() error {
	name, pipe, _ := strings.Cut(q.r.PathValue("at"), "@")
	for _, o := range q.outboxes {
		if o.Name != name || !q.user.On(name).may(see) {
			continue
		}
		place, err := o.at(q.ctx, pipe)
		if errors.Is(err, store.ErrNoPipe) || errors.Is(err, ops.ErrUnsupported) {
			return errNoPage
		}
		q.place = place
		return err
	}
	return errNoPage
}

// frame begins a page about the pipe of the request.
func (q *request) frame(nav, title string) page {
	p := page{
		Title: title, Nav: nav, Root: q.root, User: q.user, Role: q.role, Now: time.Now(),
		May: map[string]bool{"open": q.role.may(open), "act": q.role.may(act), "manage": q.role.may(manage)},
	}
	for _, o := range q.outboxes {
		if q.user.On(o.Name).may(see) {
			p.Outboxes = append(p.Outboxes, o.Name)
		}
	}
	if q.place != nil {
		p.Place, p.Outbox = q.place, q.place.outbox.Name
		p.Pipe = cmp.Or(q.place.pipe, q.place.defaultPipe())
		p.Base = q.root + "o/" + q.place.name() + "/"
		p.Sight = q.place.look(q.ctx)
		p.Dead = deadOf(&p.Sight.Status, p.Sight.At)
		p.Lacks = q.lacks()
	}
	return p
}

// lacks says why acts that not every store has are not offered.
func (q *request) lacks() map[string]string {
	why := map[string]string{}
	for name, ability := range map[string]ops.Ability{"order": ops.CanOrder, "hold": ops.CanHold, "record": ops.CanRecord} {
		if err := q.place.office.Need(ability); err != nil && !(ability == ops.CanRecord && q.opts.NoteRead != nil) {
			why[name] = err.Error()
		}
	}
	return why
}

func deadOf(s *ops.Status, at time.Time) figure {
	return figure{N: s.Parked[store.Dead.String()], Bound: s.ParkedCapped, Known: !at.IsZero()}
}

// show writes a page.
func (q *request) show(name string, status int, p page) error {
	p.Token, p.Logout = q.token(), q.opts.Logout
	var b bytes.Buffer
	if err := q.pages[name].ExecuteTemplate(&b, "frame.html", p); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	q.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	q.w.WriteHeader(status)
	_, _ = q.w.Write(b.Bytes()) // the reader has gone
	return nil
}

// redirect sends the browser to a page of the pipe, after a form was carried out.
func (q *request) redirect(to string) error {
	q.w.Header().Set("Location", q.root+"o/"+q.place.name()+"/"+to)
	q.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// problem is the page about an error.
type problem struct {
	Status        int
	What, Explain string
	Href, Key     string // page of the key that the text may be
}

// fail answers with an error.
func (q *request) fail(err error) {
	var (
		refused *refusal
		unknown *unknownUserError
		text    = problem{Status: http.StatusInternalServerError, What: "This page could not be made", Explain: err.Error()}
	)
	switch {
	case errors.As(err, &unknown) && q.opts.Login != nil && q.r.Method == http.MethodGet && !strings.HasSuffix(q.r.URL.Path, "/events"):
		q.opts.Login.ServeHTTP(q.w, q.r)
		return
	case errors.As(err, &unknown):
		text = problem{Status: http.StatusUnauthorized, What: "Not signed in", Explain: err.Error()}
	case errors.As(err, &refused):
		text = problem{Status: refused.status, What: "Refused", Explain: err.Error()}
	case errors.Is(err, errNoPage):
		text = problem{Status: http.StatusNotFound, What: "Page not found", Explain: "this outbox, pipe or page does not exist, or your role does not show it"}
	case errors.Is(err, store.ErrNotFound):
		text.Status, text.What = http.StatusNotFound, "Not found"
	case errors.Is(err, ops.ErrUnsupported):
		text.Status, text.What = http.StatusUnprocessableEntity, "This store lacks it"
	case errors.Is(err, ops.ErrInvalidOrder):
		text.Status, text.What = http.StatusBadRequest, "The order is not valid"
	case errors.Is(err, context.DeadlineExceeded):
		text.Status, text.What = http.StatusGatewayTimeout, "The database took too long"
	case q.ctx.Err() != nil:
		return // nobody reads the answer
	}
	if key := (*perhapsKeyError)(nil); errors.As(err, &key) {
		text.Key, text.Href = key.key, "dead"
		if q.place.office.Has(ops.CanFind) {
			text.Href = "key"
		}
	}
	if text.Status >= http.StatusInternalServerError {
		q.opts.Logger.WarnContext(q.ctx, "page failed", "path", path.Base(q.r.URL.Path), "error", err)
	}
	p := page{Title: text.What, Root: q.root, User: q.user, Role: q.role, Now: time.Now(), Body: text}
	if q.place != nil && q.role.may(see) {
		p = q.frame("", text.What)
		p.Body = text
	}
	if err := q.show("problem", text.Status, p); err != nil {
		http.Error(q.w, text.What, text.Status)
	}
}

// limited bounds what a page asks of the database.
func (q *request) limited(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(q.ctx, d)
}

// static serves the console's own files.
func (q *request) static() error {
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	name := q.r.PathValue("file")
	data, err := staticFiles.ReadFile("static/" + name)
	if err != nil {
		q.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		q.w.WriteHeader(http.StatusNotFound)
		_, _ = q.w.Write([]byte("no such file\n"))
		return nil //nolint:nilerr // it is answered
	}
	q.w.Header().Set("Content-Type", types[path.Ext(name)])
	q.w.Header().Set("Cache-Control", "no-cache")
	_, _ = q.w.Write(data)
	return nil
}
