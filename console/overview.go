package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// card is one outbox on the first page.
type card struct {
	Name, Kind string
	Sight      sight
	Pending    figure
	Dead       figure
	Verdict    verdict
	Role       Role
}

// home lists the outboxes that the user may see; a single one is shown at once.
func (q *request) home() error {
	var cards []card
	for _, o := range q.outboxes {
		if role := q.user.On(o.Name); role.may(see) {
			cards = append(cards, card{Name: o.Name, Kind: o.Office.Kind, Role: role})
		}
	}
	if len(cards) == 0 {
		return &refusal{http.StatusForbidden, "you have no role on any outbox of this console"}
	}
	if len(cards) == 1 {
		q.w.Header().Set("Location", q.root+"o/"+cards[0].Name+"/")
		q.w.WriteHeader(http.StatusSeeOther)
		return nil
	}
	for i := range cards {
		c := &cards[i]
		place := q.outboxes[slices.IndexFunc(q.outboxes, func(o *outbox) bool { return o.Name == c.Name })].main
		c.Sight = place.look(q.ctx)
		c.Pending = figure{c.Sight.Status.Pending, c.Sight.Status.Capped, true}
		c.Dead = deadOf(&c.Sight.Status, c.Sight.At)
		c.Verdict = place.judge(&c.Sight, nil)
	}
	slices.SortStableFunc(cards, func(a, b card) int { return cmp.Compare(b.Verdict.rank(), a.Verdict.rank()) })
	p := q.frame("home", "Outboxes")
	p.Body, p.Reload = cards, 15
	return q.show("home", http.StatusOK, p)
}

// verdict is how an outbox is, in one sentence, with what to do.
type verdict struct {
	Level  string // ok, warning, critical
	Text   string
	Href   string // page of the pipe where it is repaired
	Action string // words of the link
	Line   string // command that repairs or explains it
}

func (v verdict) rank() int {
	return slices.Index([]string{"ok", "warning", "critical"}, v.Level)
}

// slow is the lag from which on an outbox is late, as the doctor counts it.
const slow = time.Minute

// judge says how a pipe is: the worst that is true of it.
func (p *place) judge(s *sight, blocked *keysSeen) verdict {
	st := &s.Status
	alive := slices.ContainsFunc(st.Instances, func(i ops.Instance) bool { return i.Alive })
	var stuck []ops.Trouble
	for i := range st.Instances {
		if st.Instances[i].Alive {
			stuck = append(stuck, st.Instances[i].Troubles()...)
		}
	}
	dead := deadOf(st, s.At)
	late := st.Lag >= slow
	switch {
	case s.At.IsZero():
		return verdict{"critical", "The database does not answer.", "doctor", "Ask the doctor", p.command("doctor")}
	case s.Err != nil:
		return verdict{"critical", "The database does not answer: the figures are old.", "doctor", "Ask the doctor", p.command("doctor")}
	case len(st.Alarms) > 0:
		return verdict{"critical", plural(len(st.Alarms), "alarm needs", "alarms need") + " a person.", "doctor", "Ask the doctor", p.command("doctor")}
	case !alive && st.Pending > 0:
		return verdict{"critical", "No relay is alive: " + fig(figure{st.Pending, st.Capped, true}) + " pending.", "doctor?only=relays", "Ask the doctor", p.command("relay")}
	case st.Paused:
		return verdict{"warning", "The pipe is paused: messages wait.", "pipes", "Resume it", p.command("pipe", "resume", st.Pipe)}
	case slices.Contains(stuck, ops.Unreachable):
		return verdict{"critical", "A destination is not reachable: messages wait, and no attempt is used up.", "doctor", "Ask the doctor", p.command("doctor")}
	case slices.Contains(stuck, ops.Rejecting):
		return verdict{"critical", "A destination rejects all messages: it is held, and there may be dead letters.", "dead", "See why", p.command("dead", "list", "--all")}
	case len(stuck) > 0:
		return verdict{"critical", "Lanes are paused: too many keys are set aside.", "keys", "See which", p.command("dead", "list", "--all")}
	case len(st.Stops) > 0:
		return verdict{"warning", plural(len(st.Stops), "destination is", "destinations are") + " stopped.", "#attention", "See which", p.command("status")}
	case blocked != nil && blocked.Stuck() > 0:
		return verdict{"warning", blocked.text() + " blocked.", "keys", "See which", p.command("dead", "list")}
	case dead.N > 0:
		return verdict{"warning", deadText(dead), "dead", "See why", p.command("dead", "list")}
	case late:
		return verdict{"warning", "The oldest message is late: it waits for " + st.AtMost() + age(st.Lag) + ".", "lanes", "See where", p.command("status", "--lanes")}
	case !alive:
		return verdict{"warning", "No relay is alive; nothing is pending.", "doctor?only=relays", "Ask the doctor", p.command("relay")}
	case st.Pending > 0:
		return verdict{Level: "ok", Text: "Messages are flowing."}
	}
	return verdict{Level: "ok", Text: "Everything has been sent."}
}

func deadText(f figure) string {
	if f.N == 1 && !f.Bound {
		return "1 message is dead."
	}
	return fig(f) + " messages are dead."
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return num(n) + " " + many
}

// overviewBody is what the overview shows of a pipe.
type overviewBody struct {
	Verdict  verdict
	In, Out  float64
	Blocked  figure
	Relays   []ops.Instance
	Alive    int
	Charts   []chart
	Span     span
	Spans    []span
	Strip    []laneCell
	Acts     []ops.JournalEntry
	NoActs   string // why there is no journal
	Extras   []Extra
	Counts   []counted
	Attended bool // something needs attention
}

type counted struct {
	Name string
	N    int64
}

// overview shows how a pipe is.
func (q *request) overview() error {
	p := q.frame("overview", "Overview")
	var body overviewBody
	if q.managesAll() {
		body.Extras = q.opts.Extras
	}
	st := &p.Sight.Status
	keys, _ := q.place.blocked(q.ctx) // an error is told on the page of keys
	body.Blocked = keys.figure()
	body.Verdict = q.place.judge(&p.Sight, &keys)
	body.In, body.Out = rates(q.place.samples(), 10*time.Second)
	body.Acts, body.NoActs = q.recent(8)
	body.Span, body.Spans = q.span()
	samples, marks := q.place.series(q.ctx, body.Span), q.marks(body.Span)
	body.Charts = []chart{lagChart(body.Span, samples, marks), rateChart(body.Span, samples, marks), stuckChart(body.Span, samples, marks)}
	for _, i := range st.Instances {
		if i.Alive {
			body.Alive++
			body.Relays = append(body.Relays, i)
		}
	}
	body.Strip = stripOf(st)
	for state := store.Scheduled; state <= store.Dead; state++ {
		body.Counts = append(body.Counts, counted{state.String(), st.Parked[state.String()]})
	}
	body.Attended = len(st.Alarms)+len(st.Holds)+len(st.Stops) > 0 || st.Paused
	p.Span = body.Span.Href()
	p.Body, p.Live, p.Command, p.Reload = body, true, q.place.command("status", "--watch"), 15
	return q.show("overview", http.StatusOK, p)
}

// recent returns the last entries of the journal, or why there are none.
func (q *request) recent(n int) ([]ops.JournalEntry, string) {
	if err := q.place.office.Need(ops.CanJournal); err != nil {
		return nil, err.Error()
	}
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	all, err := q.place.office.Journal.Entries(ctx, ops.JournalQuery{Limit: n})
	if err != nil {
		return nil, err.Error()
	}
	return all, ""
}

// mostMarks is how many acts a chart shows.
const mostMarks = 100

// marks are the acts that charts show: of this pipe, or of the whole outbox.
func (q *request) marks(s span) []mark {
	if q.place.office.Journal == nil {
		return nil
	}
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	entries, err := q.place.office.Journal.Entries(ctx, ops.JournalQuery{Since: time.Now().Add(-s.Long), Limit: mostMarks})
	if err != nil {
		return nil // the last acts tell it
	}
	var all []mark
	for _, e := range entries {
		if e.Pipe == "" || e.Pipe == cmp.Or(q.place.pipe, q.place.defaultPipe()) {
			all = append(all, mark{e.At, e.Act + " by " + e.Actor})
		}
	}
	return all
}

// laneCell is one lane in the strip of the overview.
type laneCell struct {
	X, Y  int
	Class string
	Title string
}

// stripOf draws each lane as a small square: what moves, what waits and what is stuck.
func stripOf(s *ops.Status) []laneCell {
	const columns, step = 32, 14
	cells := make([]laneCell, 0, len(s.Lanes))
	for i := range s.Lanes {
		l := &s.Lanes[i]
		cells = append(cells, laneCell{X: i % columns * step, Y: i / columns * step, Class: laneClass(s, l), Title: laneTitle(s, l)})
	}
	return cells
}

func laneClass(s *ops.Status, l *ops.LaneStatus) string {
	switch {
	case !l.Leased && l.Pending > 0:
		return "lost"
	case l.Pending > 0 && s.WaitsFor(l) != "":
		return "lost"
	case l.Lag >= slow:
		return "late"
	case l.Parked > 0:
		return "parked"
	case l.Pending > 0:
		return "busy"
	case !l.Leased:
		return "free"
	}
	return "calm"
}

func laneTitle(s *ops.Status, l *ops.LaneStatus) string {
	text := fmt.Sprintf("lane %d: %d pending, %d parked", l.Lane, l.Pending, l.Parked)
	if l.Pending > 0 {
		text += ", lag " + l.AtMost() + age(l.Lag)
	}
	if waits := s.WaitsFor(l); waits != "" {
		text += "; waits for " + waits
	}
	return text
}

// eventsEvery is the time between two events of a page.
const eventsEvery = 2 * time.Second

// live is what the script of a page writes into it.
type live struct {
	Pending string            `json:"pending"`
	Lag     string            `json:"lag"`
	In      string            `json:"in"`
	Out     string            `json:"out"`
	Dead    string            `json:"dead"`
	Blocked string            `json:"blocked"`
	Relays  string            `json:"relays"`
	Text    string            `json:"verdict"`
	Level   string            `json:"level"`
	At      string            `json:"at"`
	Paths   map[string]string `json:"paths"`
	Tops    map[string]string `json:"tops"`
	Lanes   []string          `json:"lanes"`
	Orders  []string          `json:"orders,omitempty"`
}

// events sends the figures of the pipe as long as the page is open.
func (q *request) events() error {
	control := http.NewResponseController(q.w)
	q.w.Header().Set("Content-Type", "text/event-stream")
	q.w.Header().Set("X-Accel-Buffering", "no")
	ticker := time.NewTicker(eventsEvery)
	defer ticker.Stop()
	for {
		data, err := json.Marshal(q.figures())
		if err != nil {
			return err
		}
		_ = control.SetWriteDeadline(time.Now().Add(3 * eventsEvery)) // not every writer has deadlines
		if _, err := fmt.Fprintf(q.w, "event: figures\ndata: %s\n\n", data); err != nil {
			return nil // the page was closed
		}
		if err := control.Flush(); err != nil {
			return nil // the page was closed
		}
		select {
		case <-q.ctx.Done():
			return nil
		case <-q.Console.ctx.Done():
			return nil
		case <-ticker.C:
		}
		// A token may have been taken away, a role lowered, a pipe removed.
		if !q.stillAdmitted() {
			return nil // the page asks again, and is told why
		}
	}
}

// stillAdmitted asks again who the user is and what he may. While the database does not answer,
// he stays: the figures tell that.
func (q *request) stillAdmitted() bool {
	place := q.place
	err := q.admit(endpoint{method: http.MethodGet, need: see})
	var (
		refused *refusal
		unknown *unknownUserError
	)
	if err != nil {
		q.place = place
	}
	return !errors.As(err, &refused) && !errors.As(err, &unknown) && !errors.Is(err, errNoPage)
}

func (q *request) figures() live {
	s := q.place.look(q.ctx)
	keys, _ := q.place.blocked(q.ctx) // an error is told on the page of keys
	in, out := rates(q.place.samples(), 10*time.Second)
	chosen, _ := q.span()
	samples := q.place.series(q.ctx, chosen)
	v := q.place.judge(&s, &keys)
	l := live{
		Pending: fig(figure{s.Status.Pending, s.Status.Capped, !s.At.IsZero()}), Lag: s.Status.AtMost() + age(s.Status.Lag), In: rateText(in), Out: rateText(out),
		Dead: fig(deadOf(&s.Status, s.At)), Blocked: fig(keys.figure()),
		Text: v.Text, Level: v.Level, At: s.At.UTC().Format("15:04:05"), Paths: map[string]string{}, Tops: map[string]string{},
	}
	alive := 0
	for _, i := range s.Status.Instances {
		if i.Alive {
			alive++
		}
	}
	l.Relays = strconv.Itoa(alive)
	for _, c := range []chart{lagChart(chosen, samples, nil), rateChart(chosen, samples, nil), stuckChart(chosen, samples, nil)} {
		l.Tops[c.Name] = c.Top
		for _, line := range c.Lines {
			l.Paths[c.Name+"-"+line.Name] = line.Path
		}
	}
	for i := range s.Status.Lanes {
		l.Lanes = append(l.Lanes, laneClass(&s.Status, &s.Status.Lanes[i]))
	}
	return l
}

// managesAll reports whether the user may do what concerns every outbox.
func (q *request) managesAll() bool {
	return !slices.ContainsFunc(q.outboxes, func(o *outbox) bool { return !q.user.On(o.Name).may(manage) })
}

// extra carries out a button of the embedding program.
func (q *request) extra() error {
	if !q.managesAll() {
		return &refusal{http.StatusForbidden, "this button concerns the whole program: it needs admin on every outbox"}
	}
	i, err := strconv.Atoi(q.r.PostForm.Get("extra"))
	if err != nil || i < 0 || i >= len(q.opts.Extras) {
		return errNoPage
	}
	e := q.opts.Extras[i]
	q.opts.Logger.InfoContext(q.ctx, "button pressed", "button", e.Label, "actor", q.user.Name)
	if err := e.Do(q.ctx, q.user.Name); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", e.Label, err))
	}
	return q.redirect("")
}
