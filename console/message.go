package console

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/seal"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// step is one thing that happened to a message.
type step struct {
	At    time.Time
	Name  string
	Text  string
	Class string // of its mark
	Now   bool   // it is what the message is at
}

// messageBody is the life of one message.
type messageBody struct {
	Life   ops.MessageLife
	State  string
	Steps  []step
	Record *ops.ParkedRecord
	Effect []effect
	Body   *opened // the payload, where it was asked for
	CanAct bool
	Finder bool
}

// effect is what a consumer knows of the message.
type effect struct {
	Name, Claim, State, LastError string
	Attempts                      int
	Stashed, Needs                int64
}

// opened is a payload that is shown.
type opened struct {
	Text    string
	Kind    string // how it is shown: text, JSON, hex
	Bytes   int
	Cut     bool
	Sealed  bool
	Headers map[string]string
	Type    string
}

// message shows the life of a message, by its id or by the number of its parked record.
func (q *request) message() error {
	p, err := q.messagePage()
	if err != nil {
		return err
	}
	return q.show("message", http.StatusOK, p)
}

func (q *request) messagePage() (page, error) {
	v := q.r.URL.Query()
	if q.r.Method == http.MethodPost {
		v = q.r.PostForm
	}
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	id := v.Get("id")
	body := messageBody{CanAct: q.role.may(act), Finder: q.place.office.Has(ops.CanFind)}
	if text := v.Get("seq"); text != "" {
		seq, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return page{}, &refusal{http.StatusBadRequest, "seq must be the number of a record"}
		}
		r, err := admin.Find(ctx, q.place.office.Admin, seq, false)
		if err != nil {
			return page{}, err
		}
		body.Record, id = &r, r.Message.ID
	}
	if id == "" {
		p := q.frame("message", "Find a message")
		p.Body, p.Command = body, q.place.command("message", "show", "ID")
		return p, nil
	}
	typed := id
	id = strings.ToLower(id)
	if err := q.life(ctx, &body, id, v.Get("at")); err != nil {
		if body.Record == nil && uuidText.MatchString(typed) && (errors.Is(err, store.ErrNotFound) || !body.Finder) {
			err = &perhapsKeyError{err, typed}
		}
		return page{}, err
	}
	body.State = body.Life.State()
	body.Effect = q.effects(ctx, id)
	body.Steps = stepsOf(&body, time.Now())
	p := q.frame("message", "Message")
	p.Body, p.Command = body, q.place.command("message", "show", id)
	if !body.Finder {
		p.Command = q.place.command("dead", "show", strconv.FormatInt(body.Life.Seq, 10))
	}
	return p, nil
}

// perhapsKeyError is the error for an id that no message has. The text may be a key.
type perhapsKeyError struct {
	error
	key string
}

func (e *perhapsKeyError) Unwrap() error { return e.error }

// life fills what is known of the message. A store that cannot search knows its parked record alone.
func (q *request) life(ctx context.Context, body *messageBody, id, at string) error {
	if body.Finder {
		query := ops.MessageQuery{ID: id}
		if at != "" {
			t, err := time.Parse(time.RFC3339, at)
			if err != nil {
				return &refusal{http.StatusBadRequest, "at must be a time such as 2026-01-31T12:00:00Z"}
			}
			query.At = t
		}
		life, err := q.place.office.Finder.Message(ctx, query)
		if err != nil {
			return err
		}
		body.Life = life
		if life.Parked != nil {
			body.Record = life.Parked
		}
		return nil
	}
	if body.Record == nil {
		all, err := q.place.office.Admin.Parked(ctx, ops.ParkedQuery{ID: id, Bare: true, Limit: 1})
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return fmt.Errorf("message %s is not parked: %w", id, q.place.office.Need(ops.CanFind))
		}
		body.Record = &all[0]
	}
	r := body.Record
	body.Life = ops.MessageLife{Lane: r.Lane, Seq: r.Seq, Message: r.Message, Settled: true, Parked: r}
	return nil
}

// effects asks every consumer beside the outbox. An error is told in the place of the effect.
func (q *request) effects(ctx context.Context, id string) (all []effect) {
	boxes := q.place.outbox.Consumers
	if boxes == nil {
		return nil
	}
	status, err := boxes.Status(ctx)
	if err != nil {
		return []effect{{Name: "consumers", LastError: err.Error()}}
	}
	for i := range status {
		e := effect{Name: status[i].Consumer}
		known, err := boxes.Message(ctx, e.Name, id)
		if err != nil {
			e.LastError = err.Error()
		} else {
			e.Claim, e.State, e.Attempts, e.LastError = known.Status, known.Attempt, known.Attempts, known.LastError
			e.Stashed, e.Needs = known.Stashed, known.StashNeeds
		}
		all = append(all, e)
	}
	return all
}

// stepsOf is the life of a message in the order of time.
func stepsOf(b *messageBody, now time.Time) (steps []step) {
	m := &b.Life
	steps = append(steps, step{At: m.Message.Time, Name: "Enqueued", Text: fmt.Sprintf("in lane %d as record %d", m.Lane, m.Seq), Class: "ok"})
	if !m.Message.NotBefore.IsZero() {
		steps = append(steps, step{At: m.Message.NotBefore, Name: "Not before", Text: "delivery was to wait until then", Class: "wait"})
	}
	if r := b.Record; r != nil {
		for _, a := range r.History {
			steps = append(steps, step{At: a.At, Name: fmt.Sprintf("Attempt %d failed", a.Attempt), Text: joined(a.Class, a.Code, a.Error), Class: "bad"})
		}
		if len(r.History) == 0 && r.Error != "" {
			steps = append(steps, step{At: r.LastAttempt, Name: "Failed", Text: joined(r.Class, r.Code, r.Error), Class: "bad"})
		}
	}
	last := step{Now: true, Class: "wait"}
	switch r := b.Record; {
	case r != nil && r.State == store.Dead:
		last.Name, last.Class, last.Text = "Dead letter", "bad", "a person retries or discards it"
		if r.Captures && m.Message.Key != "" {
			last.Text += "; its key waits behind it"
		}
	case r != nil && r.State == store.Retry:
		last.Name, last.Text, last.At = "Tried again", "by the relay", now.Add(r.DueIn)
	case r != nil && r.State == store.Scheduled:
		last.Name, last.Text, last.At = "Sent when its time has come", "by the relay", now.Add(r.DueIn)
	case m.Head != nil:
		last.Name, last.Text = "Waits behind its key's first message", fmt.Sprintf("record %d (%s)", m.Head.Seq, m.Head.State)
	case r != nil:
		last.Name, last.Text = "Waits behind its key's first message", ""
	case m.Excluded:
		last.Name, last.Text, last.Class = "Left out", "the pipe's filter does not carry it", "ok"
	case m.Settled:
		last.Name, last.Text, last.Class = "Settled", "the broker acknowledged it, or a person discarded it", "ok"
	case m.Owner != "":
		last.Name, last.Text = "Being sent", "relay "+m.Owner+" has its lane"
	default:
		last.Name, last.Text, last.Class = "Waits for a relay", "no relay holds its lane", "bad"
	}
	steps = append(steps, last)
	for _, e := range b.Effect {
		s := step{Name: "Consumer " + e.Name, Text: joined(e.Claim, e.State, e.LastError), Class: "ok"}
		if e.Claim == "" {
			s.Text, s.Class = joined("not received, or forgotten", e.LastError), "wait"
		}
		if e.Claim == "dead" || e.LastError != "" {
			s.Class = "bad"
		}
		if e.Stashed > 0 {
			s.Text, s.Class = fmt.Sprintf("kept as version %d until version %d has come", e.Stashed, e.Needs), "wait"
		}
		steps = append(steps, s)
	}
	return steps
}

func joined(parts ...string) string {
	var all []string
	for _, p := range parts {
		if p != "" {
			all = append(all, p)
		}
	}
	return strings.Join(all, " · ")
}

// maxShown is how much of a payload a page shows.
const maxShown = 64 << 10

// payload shows the payload and the headers of a parked record, after the reading was journaled.
func (q *request) payload() error {
	reason, err := reasonOf(q.r.PostForm)
	if err != nil {
		return err
	}
	seq, err := strconv.ParseInt(q.r.PostForm.Get("seq"), 10, 64)
	if err != nil {
		return &refusal{http.StatusBadRequest, "seq must be the number of a parked record"}
	}
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	// Not before the record is known to exist: a journal of numbers that were guessed helps nobody.
	if _, err := admin.Find(ctx, q.place.office.Admin, seq, false); err != nil {
		return err
	}
	if err := q.noteRead(ctx, seq, reason); err != nil {
		return err
	}
	r, err := admin.Find(ctx, q.place.office.Admin, seq, true)
	if err != nil {
		return err
	}
	shown, err := q.open(ctx, r.Message)
	if err != nil {
		return err
	}
	p, err := q.messagePage()
	if err != nil {
		return err
	}
	body, ok := p.Body.(messageBody)
	if ok {
		body.Body = shown
		p.Body = body
	}
	p.Command = q.place.command("dead", "show", strconv.FormatInt(seq, 10), "--payload")
	return q.show("message", http.StatusOK, p)
}

// noteRead writes the reading of a payload into the journal, before it happens.
func (q *request) noteRead(ctx context.Context, seq int64, reason string) error {
	office := q.place.office
	read := Read{Outbox: q.place.outbox.Name, Pipe: q.place.store.Info().Pipe, Actor: q.user.Name, Reason: reason, Seq: seq}
	q.opts.Logger.InfoContext(ctx, "payload read", "outbox", read.Outbox, "pipe", read.Pipe, "seq", seq, "actor", read.Actor, "reason", reason)
	if office.Has(ops.CanRecord) {
		_, err := office.Records.Record(ctx, ops.JournalEntry{Actor: read.Actor, Act: "read payload", Pipe: read.Pipe, Seq: seq, Reason: reason})
		if err != nil {
			return fmt.Errorf("payload not shown: %w", err)
		}
		return nil
	}
	if q.opts.NoteRead == nil {
		return &refusal{http.StatusForbidden, "payload not shown: " + office.Need(ops.CanRecord).Error() + "; set Options.NoteRead"}
	}
	if err := q.opts.NoteRead(ctx, read); err != nil {
		return fmt.Errorf("payload not shown: %w", err)
	}
	return nil
}

// open makes a payload readable.
func (q *request) open(ctx context.Context, m postrider.Message) (*opened, error) {
	o := &opened{}
	if _, sealed := m.Headers[seal.HeaderAlgorithm]; sealed {
		o.Sealed = true
		if q.opts.Open != nil {
			plain, err := q.opts.Open(ctx, m)
			if err != nil {
				return nil, fmt.Errorf("open the sealed payload: %w", err)
			}
			m, o.Sealed = plain, false
		}
	}
	o.Headers, o.Type, o.Bytes = m.Headers, m.ContentType, len(m.Payload)
	data := m.Payload
	if len(data) > maxShown {
		data, o.Cut = data[:maxShown], true
	}
	var indented bytes.Buffer
	switch {
	case !o.Cut && !o.Sealed && json.Indent(&indented, data, "", "  ") == nil:
		o.Kind, o.Text = "JSON", indented.String()
	case utf8.Valid(data) || o.Cut && utf8.Valid(data[:max(len(data)-3, 0)]):
		o.Kind, o.Text = "text", strings.ToValidUTF8(string(data), "")
	default:
		const hexShown = 4 << 10
		if len(data) > hexShown {
			data, o.Cut = data[:hexShown], true
		}
		o.Kind, o.Text = "hex", hex.Dump(data)
	}
	return o, nil
}
