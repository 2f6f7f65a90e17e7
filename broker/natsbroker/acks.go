package natsbroker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
)

// acks is the sink's inbox: it passes the answers of streams to the waiting calls.
// The client's own futures take two channels, a timer and a decoded JSON object per
// message, which cost more than publishing it (ADR 28); here a call takes all
// its answers at once.
type acks struct {
	nc *nats.Conn

	mu     sync.Mutex
	sub    *nats.Subscription
	prefix string // of the inbox's subjects; "": not subscribed yet
	slots  []slot
	free   []uint32
	room   chan struct{} // closed when a slot is free again; nil: no call waits
}

// slot is a message on the wire.
type slot struct {
	turn  uint32 // how often the slot was given back: late answers for an earlier turn are dropped
	call  *delivery
	i     int
	epoch uint64 // the connection's number of reconnects at the time of sending
	since time.Time
}

// ticket names a slot and its turn; it is the last token of a reply subject.
// It is never 0.
type ticket uint64

func ticketOf(n, turn uint32) ticket { return ticket(turn)<<32 | ticket(n) }

func (t ticket) slot() uint32 { return uint32(t) } //nolint:gosec // its lower half
func (t ticket) turn() uint32 { return uint32(t >> 32) }

// reply is the subject for the answer, in an inbox.
func (t ticket) reply(inbox string) string {
	var b [64]byte
	return string(strconv.AppendUint(append(b[:0], inbox...), uint64(t), 36))
}

// answer is a stream's answer to message i of a call.
type answer struct {
	i   int
	err error
}

func newAcks(nc *nats.Conn, most int) *acks {
	a := &acks{nc: nc, slots: make([]slot, most), free: make([]uint32, most)}
	for n := range a.slots {
		a.slots[n].turn = 1
		a.free[n] = uint32(n) //nolint:gosec // bounded by the sink's window
	}
	return a
}

// listenWait is how long the server may take to accept the subscription.
const listenWait = 2 * time.Second

// listen subscribes to the answers, once. The client subscribes again by itself
// after it has lost the connection. Nothing is sent before the server has accepted
// the subscription: it would store messages whose acknowledgements are lost.
func (a *acks) listen() (prefix string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prefix != "" {
		return a.prefix, nil
	}
	inbox := a.nc.NewInbox() + "."
	sub, err := a.nc.Subscribe(inbox+"*", a.answered)
	if err != nil {
		return "", broker.Outage(fmt.Errorf("subscribe to answers: %w", err), "", "")
	}
	if err = a.nc.FlushTimeout(listenWait); err != nil {
		err = broker.Outage(fmt.Errorf("subscribe to answers: %w", err), "", "")
	} else if refused := deaf(a.nc, inbox); refused != nil { // the server reports it before it answers the flush
		err = broker.Outage(refused, codePermission, "")
	}
	if err != nil {
		_ = sub.Unsubscribe() // fails on a closed connection only
		return "", err
	}
	a.sub, a.prefix = sub, inbox
	return inbox, nil
}

// deafened returns the error with which the server ended the subscription, if it
// did; listen then subscribes again.
func (a *acks) deafened() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.prefix == "" {
		return nil
	}
	err := deaf(a.nc, a.prefix)
	if err != nil {
		_ = a.sub.Unsubscribe() // the server has dropped it already
		a.sub, a.prefix = nil, ""
	}
	return err
}

// take gives message i of a call a slot. If none is free, and the call has
// nothing on the wire, it returns a channel that is closed when a slot is free.
func (a *acks) take(d *delivery, i int, epoch uint64) (ticket, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) == 0 {
		d.eager = true
		if d.open > 0 {
			return 0, nil
		}
		if a.room == nil {
			a.room = make(chan struct{})
		}
		return 0, a.room
	}
	n := a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	s := &a.slots[n]
	s.call, s.i, s.epoch, s.since = d, i, epoch, time.Now()
	d.open++
	return ticketOf(n, s.turn), nil
}

// give gives a slot back; late answers for it are dropped. The caller holds mu.
func (a *acks) give(n uint32) {
	s := &a.slots[n]
	s.call.open--
	s.call = nil
	s.turn++
	a.free = append(a.free, n)
	if a.room != nil {
		close(a.room)
		a.room = nil
	}
}

// answered stores an answer for its call.
func (a *acks) answered(m *nats.Msg) {
	n, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 36, 64)
	t := ticket(n)
	if err != nil || int(t.slot()) >= len(a.slots) {
		return
	}
	err = meaning(m)
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &a.slots[t.slot()]
	if s.call == nil || s.turn != t.turn() {
		return // of a call that has ended
	}
	d, i := s.call, s.i
	d.got = append(d.got, answer{i, err})
	a.give(t.slot())
	// A call with nothing to send sleeps until all its messages are answered.
	if d.open == 0 || d.eager || d.next[i] > 0 {
		d.eager = false
		select {
		case d.bell <- struct{}{}:
		default:
		}
	}
}

// meaning returns the error of a stream's answer; nil: the stream has the message.
func meaning(m *nats.Msg) error {
	if plainAck(m.Data) {
		return nil
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return jetstream.ErrNoStreamResponse
	}
	var a struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
	}
	switch err := json.Unmarshal(m.Data, &a); {
	case err != nil:
		return jetstream.ErrInvalidJSAck
	case a.Error != nil:
		return a.Error
	case a.Stream == "":
		return jetstream.ErrInvalidJSAck
	}
	return nil
}

// plainAck reports whether data is {"stream":"NAME","seq":NUMBER}, or with
// "duplicate":true behind it, as nats-server writes it, with a name in which
// nothing is escaped. All else is decoded.
func plainAck(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	end := bytes.IndexByte(rest, '"')
	if !ok || end <= 0 || bytes.IndexByte(rest[:end], '\\') >= 0 {
		return false
	}
	rest, ok = bytes.CutPrefix(rest[end+1:], []byte(`,"seq":`))
	digits := len(rest)
	rest = bytes.TrimLeft(rest, "0123456789")
	if !ok || digits == len(rest) {
		return false
	}
	return string(rest) == "}" || string(rest) == `,"duplicate":true}`
}

// of returns the slot of a ticket's message, the zero slot if it is answered.
func (a *acks) of(t ticket) slot {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.slots[t.slot()]; s.turn == t.turn() {
		return s
	}
	return slot{}
}

// forget gives a ticket's slot back if it is not answered yet.
func (a *acks) forget(t ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.slots[t.slot()].turn == t.turn() {
		a.give(t.slot())
	}
}
