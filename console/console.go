// Package console serves the pages on which people see what is in an outbox, what is stuck and
// why, and act on it. It knows an outbox by its office (package ops) alone.
//
// A [Console] is an [http.Handler] for any prefix of an application's mux. Its pages are made on
// the server and work without JavaScript. What it does to an outbox is what the command of the
// same name does, and each page shows that command.
package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/console/internal/forms"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Outbox is one outbox that a console shows.
type Outbox struct {
	// Name of the outbox in pages and paths: letters, digits, "-", "_" and "."; at most 63.
	Name string
	// Store is the road of the default pipe. The console leases a lane of it only to carry out
	// an act while no relay lives.
	Store  store.Store
	Office *ops.Office
	// Consumers are the inboxes in the same or in another database; nil: none.
	Consumers *admin.Inboxes
	// Flags are what a command needs to reach the outbox, such as "--relay shop". They are
	// shown, so they must not hold a password.
	Flags string
	// ConsumerFlags are what a command needs to reach Consumers. "": Flags.
	ConsumerFlags string
}

// Options are the settings of a console. nil means all defaults.
type Options struct {
	// Authenticate returns who sends a request. nil: every request is refused. An error is
	// answered with 401, or by Login where that is set.
	Authenticate func(r *http.Request) (User, error)
	// Login answers a request for a page of which Authenticate has returned an error.
	Login http.Handler
	// Logout is the path to which the button "Sign out" of every page sends an empty form. "":
	// no button.
	Logout string
	// Prefix of the console's paths, where no http.StripPrefix removes it: "/outbox".
	Prefix string
	// Origins from which acts are taken besides the console's own, such as
	// "https://ops.example.com", for a proxy that changes the Host header.
	Origins []string
	// Secret from which the tokens of forms are made. Processes that serve one console behind
	// a load balancer share it. Default: random, so that forms end with the process. A form
	// that is sent again to the same process acts once; that of a replay acts once in all
	// processes, which the outbox's journal remembers.
	Secret []byte
	// Open decrypts a message before its payload is shown, such as Open of package seal. nil:
	// sealed payloads are shown as they are stored.
	Open func(ctx context.Context, m postrider.Message) (postrider.Message, error)
	// NoteRead remembers that a payload is read, before it is shown, for stores whose journal
	// cannot. nil: payloads of such stores are not shown.
	NoteRead func(ctx context.Context, r Read) error
	// Extras are buttons on the overview beside the console's own, for an admin of every outbox.
	Extras []Extra
	// Logger reports what people do, and pages that fail. nil discards.
	Logger *slog.Logger
}

// Read is the reading of one payload.
type Read struct {
	Outbox, Pipe, Actor, Reason string
	Seq                         int64
}

// Extra is a button of the embedding program.
type Extra struct {
	Label   string // of the button
	Explain string // what it will do
	Do      func(ctx context.Context, actor string) error
}

// Console shows outboxes. It is safe for concurrent use.
type Console struct {
	opts     Options
	outboxes []*outbox
	bad      error
	mux      *http.ServeMux
	pages    map[string]*template.Template
	cross    *http.CrossOriginProtection
	secret   []byte
	ctx      context.Context // of what continues when a request has ended
	cancel   context.CancelFunc
	work     sync.WaitGroup
	mu       sync.Mutex
	followed map[string]bool // orders that are carried out while no relay lives
	closed   bool
	sent     forms.Sent
}

var outboxName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// New returns a console for outboxes. It does no I/O. A mistake in its arguments is returned by
// [Console.Check], and answers every request.
func New(outboxes []Outbox, o *Options) *Console {
	c := &Console{cross: http.NewCrossOriginProtection(), followed: map[string]bool{}}
	if o != nil {
		c.opts = *o
	}
	if c.opts.Logger == nil {
		c.opts.Logger = slog.New(slog.DiscardHandler)
	}
	c.secret = slices.Clone(c.opts.Secret)
	if len(c.secret) == 0 {
		c.secret = []byte(rand.Text())
	}
	c.ctx, c.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // ends with Close
	c.bad = c.furnish(outboxes)
	return c
}

func (c *Console) furnish(outboxes []Outbox) error {
	if len(outboxes) == 0 {
		return errors.New("console: no outbox is given")
	}
	for i, o := range outboxes {
		switch {
		case !outboxName.MatchString(o.Name):
			return fmt.Errorf("console: outbox %q: a name has letters, digits, \"-\", \"_\" and \".\", at most 63, and begins with a letter or a digit", o.Name)
		case o.Store == nil || o.Office == nil:
			return fmt.Errorf("console: outbox %s: missing store or office", o.Name)
		case slices.ContainsFunc(outboxes[:i], func(other Outbox) bool { return other.Name == o.Name }):
			return fmt.Errorf("console: two outboxes are named %s: give each a name of its own", o.Name)
		}
		c.outboxes = append(c.outboxes, newOutbox(o))
	}
	if c.opts.Prefix != "" && (!strings.HasPrefix(c.opts.Prefix, "/") || strings.HasSuffix(c.opts.Prefix, "/")) {
		return fmt.Errorf("console: prefix %q must begin with a slash and must not end with one", c.opts.Prefix)
	}
	for _, origin := range c.opts.Origins {
		if err := c.cross.AddTrustedOrigin(origin); err != nil {
			return fmt.Errorf("console: origin %q: %w", origin, err)
		}
	}
	var err error
	if c.pages, err = parsePages(); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	c.mux = http.NewServeMux()
	for _, e := range c.endpoints() {
		c.mux.HandleFunc(e.method+" "+e.path, c.guard(e))
	}
	c.mux.HandleFunc("/", c.guard(endpoint{method: "GET", need: signedIn, serve: func(*request) error { return errNoPage }}))
	return nil
}

// Check returns what is wrong with the arguments of New.
func (c *Console) Check() error { return c.bad }

// Close ends what the console still does for orders that no relay carries out, and waits for it.
// Orders stay in the outbox, and the next relay continues them.
func (c *Console) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.work.Wait()
}

// sampleEvery is the time between two looks that [Console.Run] takes.
const sampleEvery = 5 * time.Second

// Run looks at every outbox regularly until ctx ends, so that the charts have a history also of
// times when no page was open. Without it charts begin with the first page.
func (c *Console) Run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		for _, o := range c.outboxes {
			o.main.look(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	Harden(w.Header())
	if c.bad != nil {
		http.Error(w, c.bad.Error(), http.StatusInternalServerError)
		return
	}
	if c.opts.Prefix != "" {
		http.StripPrefix(c.opts.Prefix, c.mux).ServeHTTP(w, r)
		return
	}
	c.mux.ServeHTTP(w, r)
}

// endpoint is one thing that the console answers.
type endpoint struct {
	method, path string
	need         right
	serve        func(q *request) error
}

// endpoints lists all of them. The test of roles goes through this list.
func (c *Console) endpoints() []endpoint {
	all := []endpoint{
		{"GET", "/{$}", signedIn, (*request).home},
		{"GET", "/static/{file}", nobody, (*request).static},
		{"GET", at + "{$}", see, (*request).overview},
		{"GET", at + "lanes", see, (*request).lanes},
		{"GET", at + "dead", see, (*request).dead},
		{"GET", at + "keys", see, (*request).keys},
		{"GET", at + "key", see, (*request).key},
		{"GET", at + "find", see, (*request).find},
		{"GET", at + "message", see, (*request).message},
		{"GET", at + "pipes", see, (*request).pipes},
		{"GET", at + "orders", see, (*request).orders},
		{"GET", at + "order", see, (*request).order},
		{"GET", at + "consumers", see, (*request).consumers},
		{"GET", at + "doctor", see, (*request).doctor},
		{"GET", at + "journal", see, (*request).journal},
		{"GET", at + "events", see, (*request).events},
		{"POST", at + "payload", open, (*request).payload},
		{"POST", at + "extra", manage, (*request).extra},
	}
	for _, d := range deeds() {
		all = append(all,
			endpoint{"GET", at + "do/" + d.name, d.need, func(q *request) error { return q.confirm(d) }},
			endpoint{"POST", at + "do/" + d.name, d.need, func(q *request) error { return q.do(d) }})
	}
	return all
}

// at is the path of one pipe of an outbox: "/o/shop/" or "/o/shop@audit/".
const at = "/o/{at}/"
