package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/console/internal/orders"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// laneRow is one lane of the page of lanes.
type laneRow struct {
	ops.LaneStatus
	Waits, Class string
	Held         bool
	Since        time.Time
}

// lanes shows the lanes of a pipe.
func (q *request) lanes() error {
	p := q.frame("lanes", "Lanes")
	st := &p.Sight.Status
	held := map[store.Lane]time.Time{}
	for _, h := range st.Holds {
		if h.Key == "" {
			held[h.Lane] = h.Since
		}
	}
	body := struct {
		Rows   []laneRow
		Holds  bool
		NoHold string
		Max    int64
	}{Holds: q.place.office.Holds, Max: 1}
	if err := q.place.office.Need(ops.CanHold); err != nil {
		body.NoHold = err.Error()
	}
	for i := range st.Lanes {
		l := &st.Lanes[i]
		since, isHeld := held[l.Lane]
		body.Max = max(body.Max, l.Pending)
		body.Rows = append(body.Rows, laneRow{*l, st.WaitsFor(l), laneClass(st, l), isHeld, since})
	}
	p.Body, p.Live, p.Command, p.Reload = body, true, q.place.command("status", "--lanes"), 15
	return q.show("lanes", http.StatusOK, p)
}

// shownPipes is how many pipes a page lists.
const shownPipes = 500

// pipes shows the pipes of the outbox.
func (q *request) pipes() error {
	p := q.frame("pipes", "Pipes")
	body := struct {
		Pipes   []ops.Pipe
		Default string
		Missing string
		Total   int
	}{Default: q.place.outbox.main.defaultPipe()}
	if err := q.place.office.Need(ops.CanPipe); err != nil {
		body.Missing = err.Error()
	} else {
		ctx, cancel := q.limited(lookFor)
		defer cancel()
		if body.Pipes, err = q.place.office.Pipes.Pipes(ctx); err != nil {
			return err
		}
		body.Total = len(body.Pipes)
		body.Pipes = body.Pipes[:min(body.Total, shownPipes)]
	}
	p.Body, p.Command = body, q.place.command("pipe", "list")
	return q.show("pipes", http.StatusOK, p)
}

// orderRow is one order with its entry in the journal.
type orderRow struct {
	ops.OrderState
	Entry ops.JournalEntry
	Known bool   // its state is known
	Error string // why not
	Share int    // of a hundred
}

// orders shows the last orders, or those before an entry of the journal. The journal knows them, and
// the office how far each has come.
func (q *request) orders() error {
	p := q.frame("orders", "Orders")
	body := struct {
		Rows         []orderRow
		Missing      string
		Open         bool
		Before, Next int64
		Read         int64
	}{Read: orders.Read}
	var err error
	if body.Before, err = q.entry("before"); err != nil {
		return err
	}
	for _, a := range []ops.Ability{ops.CanOrder, ops.CanJournal} {
		if err := q.place.office.Need(a); err != nil {
			body.Missing = err.Error()
			break
		}
	}
	if body.Missing == "" {
		ctx, cancel := q.limited(lookFor)
		defer cancel()
		if body.Rows, body.Next, err = q.place.ordersOf(ctx, body.Before); err != nil {
			return err
		}
		for i := range body.Rows {
			body.Open = body.Open || body.Rows[i].Known && !body.Rows[i].Done
		}
	}
	if body.Open {
		p.Reload = 5
	}
	p.Body, p.Command = body, q.place.command("journal")
	return q.show("orders", http.StatusOK, p)
}

// ordersOf lists orders that are older than an entry of the journal, as orders.Find does.
func (p *place) ordersOf(ctx context.Context, before int64) (rows []orderRow, next int64, err error) {
	found, next, err := orders.Find(ctx, p.office.Journal, p.store.Info().Pipe, before)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range found {
		row := orderRow{Entry: e}
		if row.OrderState, err = p.office.Orders.OrderState(ctx, e.ID); err != nil {
			row.Error = err.Error()
		}
		row.Known, row.Share = err == nil, share(&row.OrderState)
		rows = append(rows, row)
	}
	return rows, next, nil
}

// share is how much of an order is done, in hundredths.
func share(s *ops.OrderState) int {
	switch {
	case s.Done:
		return 100
	case s.Planned <= 0:
		return 0
	}
	return int(min(s.Moved*100/s.Planned, 100))
}

// order shows how far one order has come.
func (q *request) order() error {
	id, err := strconv.ParseInt(q.r.URL.Query().Get("id"), 10, 64)
	if err != nil {
		return &refusal{http.StatusBadRequest, "id must be the number of an order"}
	}
	if err := q.place.office.Need(ops.CanOrder); err != nil {
		return err
	}
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	state, err := q.place.office.Orders.OrderState(ctx, id)
	if err != nil {
		return err
	}
	p := q.frame("orders", "Order "+strconv.FormatInt(id, 10))
	body := struct {
		orderRow
		Entries []ops.JournalEntry
		Alive   bool
		Follows bool
	}{orderRow: orderRow{OrderState: state, Known: true, Share: share(&state)}}
	body.Alive = slices.ContainsFunc(p.Sight.Status.Instances, func(i ops.Instance) bool { return i.Alive })
	if q.place.office.Has(ops.CanJournal) {
		asked, err := q.place.office.Journal.Entries(ctx, ops.JournalQuery{ID: id, Before: id + 1, Limit: 1})
		if err == nil {
			body.Entries, err = q.place.office.Journal.Entries(ctx, ops.JournalQuery{ID: id, Limit: 200})
		}
		if err != nil {
			return err
		}
		if len(asked) > 0 {
			body.Entry = asked[0]
		}
		body.Entries = slices.DeleteFunc(body.Entries, func(e ops.JournalEntry) bool { return e.ID == id })
	}
	if !state.Done {
		p.Reload = 2
		if !body.Alive && q.role.may(act) && state.Kind != store.ActReplay {
			body.Follows = true
			q.follow(q.place, id)
		}
	}
	p.Body, p.Command = body, q.place.command("order", "show", strconv.FormatInt(id, 10))
	return q.show("order", http.StatusOK, p)
}

// consumers shows the consumers beside the outbox.
func (q *request) consumers() error {
	p := q.frame("consumers", "Consumers")
	body := struct {
		All     []admin.ConsumerStatus
		Missing string
		Error   string
	}{}
	if boxes := q.place.outbox.Consumers; boxes == nil {
		body.Missing = "no database of consumers is given to this console"
	} else {
		ctx, cancel := q.limited(lookFor)
		defer cancel()
		var err error
		if body.All, err = boxes.Status(ctx); err != nil {
			body.Error = err.Error()
		}
	}
	p.Body, p.Command, p.Reload = body, q.place.consumerCommand("status", "--consumer", "all"), 15
	return q.show("consumers", http.StatusOK, p)
}

// journalBody is the page of the journal.
type journalBody struct {
	Entries []ops.JournalEntry
	Query   ops.JournalQuery
	Next    int64
	Missing string
}

// journal shows what people did.
func (q *request) journal() error {
	v := q.r.URL.Query()
	p := q.frame("journal", "Journal")
	body := journalBody{Query: ops.JournalQuery{Actor: v.Get("by"), Act: v.Get("act"), Key: v.Get("key"), Limit: 100}}
	for name, to := range map[string]*int64{"before": &body.Query.Before, "id": &body.Query.ID} {
		n, err := q.entry(name)
		if err != nil {
			return err
		}
		*to = n
	}
	words := []string{"journal"}
	for _, f := range [][2]string{{"--by", body.Query.Actor}, {"--act", body.Query.Act}, {"--key", body.Query.Key}} {
		if f[1] != "" {
			words = append(words, f[0], f[1])
		}
	}
	if err := q.place.office.Need(ops.CanJournal); err != nil {
		body.Missing = err.Error()
	} else {
		ctx, cancel := q.limited(lookFor)
		defer cancel()
		if body.Entries, err = q.place.office.Journal.Entries(ctx, body.Query); err != nil {
			return err
		}
		if n := len(body.Entries); n == body.Query.Limit {
			body.Next = body.Entries[n-1].ID
		}
	}
	p.Body, p.Command = body, q.place.command(words...)
	return q.show("journal", http.StatusOK, p)
}

// entry reads the number of an entry of the journal from the query; 0: none is named.
func (q *request) entry(name string) (int64, error) {
	n, err := strconv.ParseInt(cmp.Or(q.r.URL.Query().Get(name), "0"), 10, 64)
	if err != nil || n < 0 {
		return 0, &refusal{http.StatusBadRequest, name + " must be the number of an entry"}
	}
	return n, nil
}

// examination is the doctor's last look at an outbox.
type examination struct {
	mu      sync.Mutex
	running chan struct{} // closed when the look that runs has ended; nil: none runs
	found   admin.Diagnosis
	at      time.Time
	err     error
}

// How old an examination may be, how long a page waits for one, and how long one may take.
const (
	examFresh = 30 * time.Second
	examWait  = 1200 * time.Millisecond
	examFor   = time.Minute
)

// finding is a finding for a page.
type finding struct {
	ops.Finding
	Level string
}

// doctor shows what is wrong with the outbox, with what repairs it.
func (q *request) doctor() error {
	body := struct {
		Findings []finding // what is to be done
		Fine     []finding
		Diag     admin.Diagnosis
		At       time.Time
		Running  bool
		Missing  string
		Error    string
	}{}
	if err := q.place.office.Need(ops.CanDiagnose); err != nil {
		body.Missing = err.Error()
	} else {
		e := &q.place.exam
		if q.r.URL.Query().Get("now") != "" {
			q.examine(true)
			return q.redirect("doctor") // which may load itself again
		}
		select {
		case <-q.examine(false):
		case <-time.After(examWait):
			body.Running = true
		case <-q.ctx.Done():
		}
		e.mu.Lock()
		body.Diag, body.At = e.found, e.at
		if e.err != nil {
			body.Error = e.err.Error()
		}
		e.mu.Unlock()
	}
	for _, f := range body.Diag.Findings {
		one := finding{Finding: f, Level: f.Severity.String()}
		if f.Severity == ops.Skipped {
			one.What = "skipped: " + one.What
		}
		if f.Severity == ops.OK || f.Severity == ops.Skipped {
			body.Fine = append(body.Fine, one)
			continue
		}
		body.Findings = append(body.Findings, one)
	}
	p := q.frame("doctor", "Doctor")
	if body.Running {
		p.Reload = 2
	}
	p.Body, p.Command = body, q.place.command("doctor", "--all")
	return q.show("doctor", http.StatusOK, p)
}

// examine begins an examination unless one runs or was made just now, and returns what is closed
// when it has ended.
func (q *request) examine(again bool) <-chan struct{} {
	p, e := q.place, &q.place.exam
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running != nil {
		return e.running
	}
	done := make(chan struct{})
	if fresh := time.Since(e.at); fresh < examFresh && !again || fresh < time.Second {
		close(done)
		return done
	}
	if !q.begin() {
		close(done)
		return done
	}
	e.running = done
	go func() {
		defer q.work.Done()
		ctx, cancel := context.WithTimeout(q.Console.ctx, examFor)
		defer cancel()
		doctors := []ops.Doctor{p.office.Doctor}
		if p.outbox.Consumers != nil {
			doctors = append(doctors, p.outbox.Consumers.Doctor())
		}
		var req ops.ExamineRequest
		if p.pipe != "" {
			req.Pipes = []string{p.pipe}
		}
		found, err := admin.Examine(ctx, req, doctors...)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.found, e.err, e.at, e.running = found, err, time.Now(), nil
		close(done)
	}()
	return done
}

// begin counts work that continues when a request has ended; false: the console is closed.
func (c *Console) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.work.Add(1)
	return true
}
