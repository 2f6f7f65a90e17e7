package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/console/internal/forms"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// deed is a kind of act. It is asked for on a page that names what it will touch and wants a
// reason, and carried out by the form of that page.
type deed struct {
	name string
	need right
	// plan says what the deed would do now, without changing anything.
	plan func(q *request, v url.Values) (*intent, error)
	// carry does it, and writes the answer.
	carry func(q *request, v url.Values, reason string) error
}

// intent is what a deed will do.
type intent struct {
	Title   string // "Retry 1 203 dead letters"
	Button  string
	Touches []touch
	Warning string // what cannot be undone
	Command string
	Fields  url.Values // of the form
	Nothing string     // why nothing can be done
	Rate    string     // default of the most records per second; "": not asked
	Topic   bool       // asks for another topic
	Forfeit int64      // messages that are given up, which the form repeats
	Danger  bool
	Action  string // path of the form
	Once    string // tells a form that is sent again
	Counted int64  // records that match
	// Counting: they are still counted, and the page asks again.
	Counting bool
}

type touch struct{ Name, Value string }

func deeds() []deed {
	var all []deed
	for _, kind := range []store.ActKind{store.ActRetry, store.ActDiscard, store.ActSkip, store.ActReplay} {
		all = append(all, deed{
			name: string(kind), need: act,
			plan:  func(q *request, v url.Values) (*intent, error) { return q.planRecords(kind, v) },
			carry: func(q *request, v url.Values, reason string) error { return q.carryRecords(kind, v, reason) },
		})
	}
	for _, kind := range []store.ActKind{store.ActPause, store.ActResume} {
		resume := kind == store.ActResume
		all = append(all, deed{
			name: string(kind), need: act,
			plan:  func(q *request, v url.Values) (*intent, error) { return q.planHold(kind, v) },
			carry: func(q *request, v url.Values, reason string) error { return q.carryHold(kind, v, reason) },
		}, deed{
			name: string(kind) + "-destination", need: act,
			plan:  func(q *request, v url.Values) (*intent, error) { return q.planStop(resume, v) },
			carry: func(q *request, v url.Values, reason string) error { return q.carryStop(resume, v, reason) },
		}, deed{
			name: string(kind) + "-pipe", need: act,
			plan:  func(q *request, v url.Values) (*intent, error) { return q.planPipe(resume, v) },
			carry: func(q *request, v url.Values, reason string) error { return q.carryPipe(resume, v, reason) },
		})
	}
	return append(all,
		deed{"remove-pipe", manage, (*request).planRemove, (*request).carryRemove},
		deed{"cancel-order", act, (*request).planCancel, (*request).carryCancel})
}

// confirm shows what a deed would do, and the form that does it.
func (q *request) confirm(d deed) error {
	in, err := d.plan(q, q.r.URL.Query())
	if err != nil {
		return err
	}
	for name, values := range in.Fields {
		if slices.ContainsFunc(values, func(v string) bool { return strings.ContainsAny(v, "\r\n") }) {
			in.Nothing = "the " + name + " has a line break, which browsers change in forms: use the command below"
		}
	}
	in.Action, in.Once = "do/"+d.name, rand.Text()
	p := q.frame(navOf(d.name), in.Title)
	p.Body, p.Command = in, in.Command
	if in.Counting {
		p.Reload = 1
	}
	return q.show("confirm", http.StatusOK, p)
}

// navOf is the page from which people come to a deed.
func navOf(name string) string {
	switch {
	case strings.HasSuffix(name, "-pipe"), name == "replay":
		return "pipes"
	case name == "cancel-order":
		return "orders"
	case name == "skip":
		return "keys"
	case name == "pause", name == "resume":
		return "keys"
	case strings.HasSuffix(name, "-destination"):
		return "overview"
	}
	return "dead"
}

// do carries a deed out.
func (q *request) do(d deed) error {
	v := q.r.PostForm
	reason, err := reasonOf(v)
	if err != nil {
		return err
	}
	once := v.Get("once")
	if !q.sent.Take(once, time.Now()) {
		return errSent
	}
	q.opts.Logger.InfoContext(q.ctx, "act asked for", "act", d.name, "outbox", q.place.outbox.Name, "pipe", q.place.store.Info().Pipe, "actor", q.user.Name, "reason", reason)
	if err = d.carry(q, v, reason); err != nil && undone(err) {
		q.sent.GiveBack(once)
	}
	return err
}

var errSent = &refusal{http.StatusConflict, "this form was sent already: see the orders and the journal; to do it again, begin at the list"}

// first refuses a form that another process of the console was sent, or this one before a restart.
func (q *request) first(once, reason string) error {
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	switch first, err := forms.First(ctx, q.place.office, once, q.user.Name, reason); {
	case err != nil:
		return fmt.Errorf("nothing was ordered: remember the form in the journal: %w", err)
	case !first:
		return errSent
	}
	return nil
}

// undone reports whether an error means that the act had no effect. Another error, such as a timeout of
// the database, leaves the effect unknown.
func undone(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) || errors.Is(err, ops.ErrInvalidOrder) || errors.Is(err, ops.ErrUnsupported) || errors.Is(err, store.ErrNotFound)
}

// reasonOf is why a person does what a form asks for.
func reasonOf(v url.Values) (string, error) {
	const longest = 500
	switch reason := strings.TrimSpace(v.Get("reason")); {
	case reason == "":
		return "", &refusal{http.StatusBadRequest, "missing reason: go back and give one; the journal keeps it"}
	case len(reason) > longest:
		return "", &refusal{http.StatusBadRequest, fmt.Sprintf("the reason has %d bytes: use at most %d", len(reason), longest)}
	default:
		return reason, nil
	}
}

// done is what became of an act that was no order.
type done struct {
	Title   string
	Results []touch
	Back    string
	Idle    bool // no relay lives
}

// execute does acts one by one, as the owner of their lanes while no relay lives.
func (q *request) execute(what, nav string, acts []store.Act, name func(i int) string) error {
	results, err := admin.Execute(q.ctx, q.place.store, q.place.office.Admin, acts, &admin.Options{Wait: lookFor, Logger: q.opts.Logger})
	if err != nil {
		return fmt.Errorf("%s: %w", strings.ToLower(what), err)
	}
	q.place.forget()
	d := done{Title: what, Back: nav}
	for i, r := range results {
		text := r.Result
		if text == admin.ResultQueued {
			text = "queued: the relay that owns the lane has not done it yet"
		}
		d.Results = append(d.Results, touch{name(i), text})
	}
	return q.answer(nav, d)
}

func (q *request) answer(nav string, d done) error {
	p := q.frame(nav, d.Title)
	d.Idle = !slices.ContainsFunc(p.Sight.Status.Instances, func(i ops.Instance) bool { return i.Alive })
	p.Body = d
	return q.show("done", http.StatusOK, p)
}

// forget makes the next page look again, since an act has changed what was seen.
func (p *place) forget() {
	p.looking.Lock()
	p.seen.At = time.Time{}.Add(1) // was seen, long ago
	p.looking.Unlock()
	p.keysMu.Lock()
	p.keys.At, p.keys.ErrAt = time.Time{}, time.Time{}
	p.keysMu.Unlock()
}

// followEvery is the time between two looks at an order that is followed, and followFor how long
// it may rest before the console stops doing that.
const (
	followEvery = 200 * time.Millisecond
	followFor   = 20 * time.Second
)

// follow carries an order out while no relay lives, until it is done or rests. The order is in the
// outbox: a console that ends, or a relay that begins, changes only who continues it.
func (c *Console) follow(p *place, id int64) {
	name := p.name() + " " + strconv.FormatInt(id, 10)
	c.mu.Lock()
	if c.closed || c.followed[name] {
		c.mu.Unlock()
		return
	}
	c.followed[name] = true
	c.work.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.work.Done()
		_, err := admin.Follow(c.ctx, p.store, p.office, id, &admin.Options{Wait: followFor, Poll: followEvery, Logger: c.opts.Logger}, nil)
		if err != nil && !errors.Is(err, context.Canceled) {
			c.opts.Logger.WarnContext(c.ctx, "order not followed", "outbox", p.outbox.Name, "order", id, "error", err)
		}
		c.mu.Lock()
		delete(c.followed, name)
		c.mu.Unlock()
	}()
}

// holdOf reads the key or the lane that is paused or resumed.
func holdOf(v url.Values) (act store.Act, what string, err error) {
	if act.Key = v.Get("key"); act.Key != "" {
		return act, "key " + act.Key, nil
	}
	n, err := strconv.ParseInt(v.Get("lane"), 10, 16)
	if err != nil || n < 0 {
		return act, "", &refusal{http.StatusBadRequest, "name a key or a lane"}
	}
	act.Lane = store.Lane(n)
	return act, "lane " + strconv.FormatInt(n, 10), nil
}

func (q *request) planHold(kind store.ActKind, v url.Values) (*intent, error) {
	if err := q.place.office.Need(ops.CanHold); err != nil {
		return nil, err
	}
	a, what, err := holdOf(v)
	if err != nil {
		return nil, err
	}
	in := &intent{Title: title(kind) + " " + what, Button: title(kind) + " " + what, Fields: url.Values{}}
	words := []string{string(kind)}
	if a.Key != "" {
		in.Fields.Set("key", a.Key)
		in.Touches = append(in.Touches, touch{"Key", a.Key})
		words = append(words, "--key", a.Key)
	} else {
		lane := strconv.Itoa(int(a.Lane))
		in.Fields.Set("lane", lane)
		in.Touches = append(in.Touches, touch{"Lane", lane})
		words = append(words, "--lane", lane)
		for _, l := range q.place.look(q.ctx).Status.Lanes {
			if l.Lane == a.Lane {
				in.Touches = append(in.Touches, touch{"Pending now", num(l.Pending)})
			}
		}
	}
	switch {
	case kind == store.ActResume:
		in.Warning = "Its messages are sent again, in their order."
	case a.Key != "":
		in.Warning = "Its messages wait in their order until it is resumed. Other keys are not concerned."
	default:
		in.Warning = "No message of the lane is read until it is resumed, and retention waits for it."
	}
	in.Command = q.place.command(append(words, "--reason", "WHY")...)
	return in, nil
}

func (q *request) carryHold(kind store.ActKind, v url.Values, reason string) error {
	if err := q.place.office.Need(ops.CanHold); err != nil {
		return err
	}
	a, what, err := holdOf(v)
	if err != nil {
		return err
	}
	a.Kind, a.Actor, a.Reason = kind, q.user.Name, reason
	nav := "lanes"
	if a.Key != "" {
		nav = "keys"
	}
	return q.execute(title(kind)+" "+what, nav, []store.Act{a}, func(int) string { return what })
}

func (q *request) planStop(resume bool, v url.Values) (*intent, error) {
	if err := q.place.office.Need(ops.CanStop); err != nil {
		return nil, err
	}
	name := v.Get("destination")
	if name == "" {
		return nil, &refusal{http.StatusBadRequest, "name a destination"}
	}
	in := &intent{
		Title: "Stop destination " + name, Warning: "Nothing is sent to it, and its messages are set aside until it is resumed.",
		Fields: url.Values{"destination": {name}}, Touches: []touch{{"Destination", name}},
		Command: q.place.command("pause", "--endpoint", name, "--reason", "WHY"),
	}
	if resume {
		in.Title, in.Warning = "Resume destination "+name, "Its messages are sent again, with the next heartbeat of each relay."
		in.Command = q.place.command("resume", "--endpoint", name, "--reason", "WHY")
	}
	in.Button = in.Title
	return in, nil
}

func (q *request) carryStop(resume bool, v url.Values, reason string) error {
	if err := q.place.office.Need(ops.CanStop); err != nil {
		return err
	}
	_, err := q.place.office.Stops.SetStop(q.ctx, store.SetStop{Destination: v.Get("destination"), Resume: resume, Actor: q.user.Name, Reason: reason})
	if err != nil {
		return err
	}
	q.place.forget()
	return q.redirect("")
}

// pipeOf finds the pipe that a form names.
func (q *request) pipeOf(v url.Values) (*ops.Pipe, error) {
	if err := q.place.office.Need(ops.CanPipe); err != nil {
		return nil, err
	}
	all, err := q.place.office.Pipes.Pipes(q.ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Name == v.Get("pipe") {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("pipe %q: %w", v.Get("pipe"), store.ErrNotFound)
}

func pipeTouches(p *ops.Pipe) []touch {
	return []touch{{"Pipe", p.Name}, {"Carries", filterText(p.Filter)}, {"Relays alive", strconv.Itoa(p.Relays)}, {"Behind", "at most " + num(p.Behind)}, {"Parked", fig(figure{p.Parked, p.ParkedCapped, true})}}
}

func filterText(f store.Filter) string { return cmp.Or(f.String(), "everything") }

func (q *request) planPipe(resume bool, v url.Values) (*intent, error) {
	p, err := q.pipeOf(v)
	if err != nil {
		return nil, err
	}
	in := &intent{
		Title: "Pause pipe " + p.Name, Fields: url.Values{"pipe": {p.Name}}, Touches: pipeTouches(p),
		Warning: "Its relays send nothing new from their next heartbeat on. Messages wait, and retention waits for them.",
		Command: q.place.command("pipe", "pause", p.Name, "--reason", "WHY"),
	}
	if resume {
		in.Title, in.Warning = "Resume pipe "+p.Name, "Its relays continue with their next heartbeat, where they stopped."
		in.Command = q.place.command("pipe", "resume", p.Name, "--reason", "WHY")
	}
	in.Button = in.Title
	return in, nil
}

func (q *request) carryPipe(resume bool, v url.Values, reason string) error {
	p, err := q.pipeOf(v)
	if err != nil {
		return err
	}
	if err := q.place.office.Pipes.PausePipe(q.ctx, ops.PausePipe{Name: p.Name, Resume: resume, Actor: q.user.Name, Reason: reason}); err != nil {
		return err
	}
	q.place.forget()
	return q.redirect("pipes")
}

func (q *request) planRemove(v url.Values) (*intent, error) {
	p, err := q.pipeOf(v)
	if err != nil {
		return nil, err
	}
	forfeit := p.Behind + p.Parked
	in := &intent{
		Title: "Remove pipe " + p.Name, Button: "Remove pipe " + p.Name, Danger: true, Forfeit: forfeit,
		Fields: url.Values{"pipe": {p.Name}, "forfeit": {strconv.FormatInt(forfeit, 10)}}, Touches: pipeTouches(p),
		Warning: "The pipe is removed with its position and what it has parked. At most " + plural(int(forfeit), "message", "messages") +
			" that it has not carried are given up; more than that, and nothing is removed. Other pipes keep them. This cannot be undone.",
		Command: q.place.command("pipe", "remove", p.Name, "--forfeit", strconv.FormatInt(forfeit, 10), "--reason", "WHY"),
	}
	if p.Name == q.place.outbox.main.defaultPipe() {
		in.Nothing = "this console is opened on that pipe: remove it with the command"
	} else if p.ParkedCapped {
		in.Nothing = "the pipe has parked " + num(p.Parked) + " messages or more, which are not counted here: remove it with the command, which names their number"
	}
	return in, nil
}

func (q *request) carryRemove(v url.Values, reason string) error {
	p, err := q.pipeOf(v)
	if err != nil {
		return err
	}
	forfeit, err := strconv.ParseInt(v.Get("forfeit"), 10, 64)
	if err != nil || forfeit < 0 {
		return &refusal{http.StatusBadRequest, "forfeit must be the number of messages that may be given up"}
	}
	if p.Name == q.place.outbox.main.defaultPipe() {
		return &refusal{http.StatusUnprocessableEntity, "this console is opened on pipe " + p.Name + ": remove it with the command"}
	}
	gone, err := q.place.office.Pipes.RemovePipe(q.ctx, ops.RemovePipe{Name: p.Name, Forfeit: forfeit, Actor: q.user.Name, Reason: reason})
	if over := (*ops.ForfeitError)(nil); errors.As(err, &over) {
		return &refusal{http.StatusConflict, err.Error()}
	}
	if err != nil {
		return err
	}
	if q.place.pipe == p.Name {
		q.place = q.place.outbox.main
	}
	return q.answer("pipes", done{Title: "Pipe " + p.Name + " is removed", Back: "pipes", Results: []touch{
		{"Pending, given up", num(gone.Pending)}, {"Parked, given up", num(gone.Parked)},
	}})
}

func (q *request) orderID(v url.Values) (int64, error) {
	if err := q.place.office.Need(ops.CanOrder); err != nil {
		return 0, err
	}
	id, err := strconv.ParseInt(v.Get("id"), 10, 64)
	if err != nil {
		return 0, &refusal{http.StatusBadRequest, "id must be the number of an order"}
	}
	return id, nil
}

func (q *request) planCancel(v url.Values) (*intent, error) {
	id, err := q.orderID(v)
	if err != nil {
		return nil, err
	}
	state, err := q.place.office.Orders.OrderState(q.ctx, id)
	if err != nil {
		return nil, err
	}
	text := strconv.FormatInt(id, 10)
	in := &intent{
		Title: "Cancel order " + text, Button: "Cancel order " + text, Fields: url.Values{"id": {text}},
		Touches: []touch{{"Act", string(state.Kind)}, {"Done", num(state.Moved) + " of " + num(state.Planned)}, {"Lanes to do", strconv.Itoa(len(state.Open))}},
		Warning: "What it has not moved yet stays as it is. What it has moved is not taken back.",
		Command: q.place.command("order", "cancel", text, "--reason", "WHY"),
	}
	if state.Done {
		in.Nothing = "the order is done"
	}
	return in, nil
}

func (q *request) carryCancel(v url.Values, reason string) error {
	id, err := q.orderID(v)
	if err != nil {
		return err
	}
	if err := q.place.office.Orders.CancelOrder(q.ctx, id, q.user.Name, reason); err != nil {
		return err
	}
	return q.redirect("order?id=" + strconv.FormatInt(id, 10))
}
