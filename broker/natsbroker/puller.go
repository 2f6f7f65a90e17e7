package natsbroker

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// puller requests messages from the server, one request at a time, and receives
// them on one subscription that lasts as long as the source. The client's own
// Fetch makes a subscription per request and ends it by its clock: messages that arrive
// while the process is stopped or starved are dropped, wait for
// AckWait, and are dropped again. See
// https://docs.nats.io/reference/reference-protocols/nats_api_reference
// (CONSUMER.MSG.NEXT) for the request and its answers.
type puller struct {
	nc      *nats.Conn
	subject string // of requests
	opts    *SourceOptions
	msgs    chan *nats.Msg // messages, and statuses that end requests
	sub     *nats.Subscription
	inbox   string // before the number of a request

	number   int // of the last pull, from 1
	open     bool
	sent     time.Time // when the server heard of this source last
	until    time.Time // end of the open request; without one, the earliest start of the next
	messages int       // that the request may still deliver
	bytes    int
	some     bool   // the request has delivered some
	single   bool   // the next message is larger than MaxHeldBytes allows
	pin      string // the server's id of this source while the consumer is pinned to it
}

func newPuller(nc *nats.Conn, opts *SourceOptions) puller {
	return puller{
		nc: nc, opts: opts, msgs: make(chan *nats.Msg, 2*opts.MaxHeld+spareStatuses),
		subject: "$JS.API.CONSUMER.MSG.NEXT." + opts.Stream + "." + opts.Group,
	}
}

// spareStatuses is the room for statuses beside the messages: more than requests without
// an answer.
const spareStatuses = 64

// request is the body of a pull.
type request struct {
	Expires  time.Duration `json:"expires,omitempty"` // ns
	Batch    int           `json:"batch,omitempty"`
	MaxBytes int           `json:"max_bytes,omitempty"`
	Pin      string        `json:"id,omitempty"`
	Group    string        `json:"group,omitempty"`
}

// due returns when the open request ends, with an answer or without one.
func (p *puller) due() time.Time { return p.until }

// pull sends a request for up to MaxHeld messages and room bytes, unless one is open.
// It returns errors of the connection.
func (p *puller) pull(room int) error {
	now := time.Now()
	if now.Before(p.until) {
		return nil
	}
	if p.open { // the last one has ended silently
		p.open = false
		if err := violation(p.nc, `ublish to "`+p.subject); err != nil {
			return fmt.Errorf("%w; %s", err, sourceRights)
		}
	}
	life := p.opts.AckWait / pullsPerWait
	r := request{Expires: life * 9 / 10, Batch: p.opts.MaxHeld, MaxBytes: room}
	if p.single { // of any size
		r.Batch, r.MaxBytes = 1, 0
	}
	p.number++
	if err := p.send(p.number, r); err != nil {
		return err
	}
	p.open, p.until, p.some, p.single = true, now.Add(life), false, false
	p.messages, p.bytes = r.Batch, room
	return nil
}

// stay keeps the pin: after a while without a request it sends one that is too small
// for any message.
func (p *puller) stay() error {
	if p.pin == "" || time.Since(p.sent) < p.opts.AckWait/pullsPerWait {
		return nil
	}
	return p.send(0, request{Expires: time.Millisecond, Batch: 1, MaxBytes: 1})
}

func (p *puller) send(number int, r request) error {
	if p.sub == nil {
		inbox := p.nc.NewInbox()
		sub, err := p.nc.ChanSubscribe(inbox+".*", p.msgs)
		if err != nil {
			return err
		}
		p.sub, p.inbox = sub, inbox+"."
	}
	r.Pin, r.Group = p.pin, group
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	p.sent = time.Now()
	return p.nc.PublishRequest(p.subject, p.inbox+strconv.Itoa(number), body)
}

// got counts a message. Late messages of an earlier request count too:
// then the next request begins early.
func (p *puller) got(msg *nats.Msg) {
	if pin := msg.Header.Get("Nats-Pin-Id"); pin != "" {
		p.pin = pin
	}
	p.some = true
	p.messages--
	p.bytes -= msg.Size()
	if p.open && (p.messages <= 0 || p.bytes <= 0) {
		p.open, p.until = false, time.Time{}
	}
}

// standing is what a status reveals about the consumer.
type standing uint8

const (
	consumerThere   standing = iota
	consumerUnsure           // it may be another one, or deleted
	consumerDeleted          // this puller's consumer
)

// status records how a request ended, and returns what that reveals about the consumer.
// An error needs a person to fix it.
func (p *puller) status(msg *nats.Msg, status string) (of standing, err error) {
	said := msg.Header.Get("Description")
	text := strings.ToLower(said)
	switch {
	case status == "423": // the consumer is pinned to another source, or was created again
		p.pin, of = "", consumerUnsure
	case strings.Contains(text, "consumer deleted"):
		p.pin, of = "", consumerDeleted
	}
	if !p.open || msg.Subject != p.inbox+strconv.Itoa(p.number) {
		return of, nil
	}
	p.open, p.until = false, time.Now()
	if !p.some && status != "408" { // not again at once
		p.until = p.until.Add(leastWait)
	}
	p.single = !p.some && strings.Contains(text, "exceeds maxbytes")
	switch {
	case status == "503": // the consumer does not exist, or has no leader now
		of = consumerUnsure
	case status == "400", strings.Contains(text, "exceeded maxrequest"):
		return of, fmt.Errorf("the server refuses to deliver: %s %s", status, said)
	}
	return of, nil
}

// close ends the subscription and returns the messages that have come.
func (p *puller) close() (arrived []*nats.Msg) {
	if p.sub == nil {
		return nil
	}
	_ = p.sub.Unsubscribe() // fails on a closed connection only
	for {
		select {
		case msg := <-p.msgs:
			if msg.Reply != "" {
				arrived = append(arrived, msg)
			}
		default:
			return arrived
		}
	}
}
