package natsbroker

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/keychain"
	"github.com/postrider/postrider/envelope"
)

// lookEvery is how often a waiting call looks for messages that will not be answered.
const lookEvery = 100 * time.Millisecond

// delivery is one Deliver call. A key has one message on the wire at a time.
type delivery struct {
	s       *Sink
	pipe    string
	msgs    []postrider.Message
	errs    []error
	next    keychain.Chain
	ready   []int // may be sent: all earlier messages of their keys are acknowledged
	tickets []ticket
	before  error // the connection's last error when the call began
	deaf    error // why sending has stopped: this user may not receive answers
	look    *time.Ticker
	bell    chan struct{} // signals that answers have arrived
	taken   []answer      // buffer that take and answered swap

	out    envelope.Wire
	header header
	msg    nats.Msg

	// Guarded by the inbox.
	open  int // messages on the wire
	got   []answer
	eager bool // the call waits for any answer
}

// Deliver implements broker.Sink.
func (s *Sink) Deliver(ctx context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	d := &delivery{
		s: s, pipe: batch.Pipe, msgs: msgs, tickets: make([]ticket, len(msgs)),
		before: s.nc.LastError(), look: time.NewTicker(lookEvery), bell: make(chan struct{}, 1),
	}
	defer d.look.Stop()
	d.next, d.ready = keychain.Of(msgs)
	for d.publish(ctx) {
		if ctx.Err() != nil {
			d.abandon(ctx)
			break
		}
		select {
		case <-d.bell:
			d.take()
		case <-d.look.C:
			d.take()
			d.giveUp()
		case <-ctx.Done():
		}
	}
	return d.errs
}

// publish sends the ready messages. It waits for a free slot only while no message is on
// the wire. It reports whether any message is open.
func (d *delivery) publish(ctx context.Context) bool {
	epoch := d.s.nc.Stats().Reconnects
	for len(d.ready) > 0 && ctx.Err() == nil {
		i := d.ready[0]
		t, room := d.s.acks.take(d, i, epoch)
		if t == 0 {
			if room == nil {
				return true
			}
			select {
			case <-room:
			case <-ctx.Done():
			}
			continue
		}
		d.ready = d.ready[1:]
		d.tickets[i] = t
		if err := d.send(&d.msgs[i], t); err != nil {
			d.fail(i, err)
		}
	}
	d.s.acks.mu.Lock()
	defer d.s.acks.mu.Unlock()
	return len(d.ready) > 0 || d.open > 0 || len(d.got) > 0
}

// send publishes a message; the stream's answer goes to the ticket's slot. The
// client has copied all of it when it returns.
func (d *delivery) send(m *postrider.Message, t ticket) error {
	_, subject, err := d.s.frame(&d.out, m)
	if err != nil {
		return err
	}
	id := d.s.dedupID(d.pipe, subject, m)
	if err := d.s.tooLarge(size(&d.out, id), subject); err != nil {
		return err
	}
	if !d.s.nc.IsConnected() {
		return broker.Outage(notConnected(d.s.nc), "", "")
	}
	if d.deaf != nil {
		return d.deaf
	}
	prefix, err := d.s.acks.listen()
	if err != nil {
		d.deaf = err // otherwise each message would ask the server, and wait for it, again
		return err
	}
	d.msg.Subject, d.msg.Reply, d.msg.Data = subject, t.reply(prefix), d.out.Payload
	d.msg.Header = d.header.of(&d.out, id)
	if err := d.s.nc.PublishMsg(&d.msg); err != nil {
		return notPublished(err, subject)
	}
	return nil
}

// header is a client header that is reused for the next message. Consecutive messages
// have mostly the same names.
type header struct {
	names  []string
	values []string // backing array of the map's values
	text   []byte
	lines  nats.Header
}

// of returns the header of a message.
func (h *header) of(w *envelope.Wire, id string) nats.Header {
	h.shape(w, id != "")
	h.text = h.text[:0]
	for i := range w.Headers {
		h.text = append(h.text, w.Headers[i].Value...)
	}
	all, at := string(h.text), 0 // one allocation for all of them
	for i := range w.Headers {
		n := len(w.Headers[i].Value)
		h.values[i] = all[at : at+n]
		at += n
	}
	if id != "" {
		h.values[len(w.Headers)] = id
	}
	return h.lines
}

// shape gives the map the names of a message.
func (h *header) shape(w *envelope.Wire, hasID bool) {
	n := len(w.Headers)
	if hasID {
		n++
	}
	same := n == len(h.names) && h.lines != nil
	for i := 0; same && i < len(w.Headers); i++ {
		same = h.names[i] == w.Headers[i].Name
	}
	if same && (!hasID || h.names[n-1] == jetstream.MsgIDHeader) {
		return
	}
	h.names, h.values, h.lines = h.names[:0], make([]string, n), make(nats.Header, n)
	for i := range w.Headers {
		h.names = append(h.names, w.Headers[i].Name)
	}
	if hasID {
		h.names = append(h.names, jetstream.MsgIDHeader)
	}
	for i, name := range h.names {
		h.lines[name] = h.values[i : i+1 : i+1]
	}
}

// take handles the answers that have arrived.
func (d *delivery) take() {
	d.s.acks.mu.Lock()
	d.got, d.taken = d.taken[:0], d.got
	d.s.acks.mu.Unlock()
	for _, a := range d.taken {
		d.tickets[a.i] = 0
		if a.err != nil {
			d.fail(a.i, refused(a.err, d.subject(a.i)))
		} else if n := d.next.Next(a.i); n > 0 {
			d.ready = append(d.ready, n)
		}
	}
}

// subject returns the subject that message i was sent to.
func (d *delivery) subject(i int) string {
	_, subject, _ := d.s.frame(&d.out, &d.msgs[i]) // without an error: it was sent
	return subject
}

// giveUp looks for messages that will not be answered: their connection is gone,
// the server has refused their subject, or they have waited long enough.
func (d *delivery) giveUp() {
	connected, epoch, now := d.s.nc.IsConnected(), d.s.nc.Stats().Reconnects, time.Now()
	deaf := d.s.acks.deafened()
	refusals := d.s.nc.LastError() != d.before //nolint:errorlint // the same value is an old error
	for i, t := range d.tickets {
		if t == 0 {
			continue
		}
		sent := d.s.acks.of(t)
		if sent.call != d { // answered meanwhile
			continue
		}
		var err error
		if refusals { // otherwise each look would encode every message again
			err = denied(d.s.nc, d.before, d.subject(i))
		}
		switch {
		case err != nil:
			d.fail(i, err)
		case deaf != nil:
			d.fail(i, broker.Unknown(deaf, codePermission, ""))
		case !connected || sent.epoch != epoch:
			d.fail(i, refused(nats.ErrDisconnected, d.subject(i)))
		case now.Sub(sent.since) >= d.s.timeout:
			d.fail(i, refused(jetstream.ErrAsyncPublishTimeout, d.subject(i)))
		}
	}
}

// fail records err for message i, stops waiting for it, and bars the rest of
// its key.
func (d *delivery) fail(i int, err error) {
	if d.tickets[i] != 0 {
		d.s.acks.forget(d.tickets[i])
		d.tickets[i] = 0
	}
	if d.errs == nil {
		d.errs = make([]error, len(d.msgs))
	}
	d.errs[i] = err
	d.next.Bar(i, d.errs, err)
}

// abandon resolves all open messages: those on the wire are unknown, the
// others were not sent.
func (d *delivery) abandon(ctx context.Context) {
	d.take()
	unknown := broker.Unknown(ctx.Err(), "", "")
	for i, t := range d.tickets {
		if t != 0 {
			d.fail(i, unknown)
		}
	}
	for _, i := range d.ready {
		d.fail(i, broker.NotTried(unknown))
	}
}
