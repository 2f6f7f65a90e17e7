// Package inhand keeps what a source has received and not yet settled: in log
// order, with the ones given back held in front of their keys' later messages. A
// [Log] is of a broker with ordered logs. A [Queue] is of a service that hides a
// received message from other consumers for a time.
package inhand

import (
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// Item is one received message. Its fields belong to the log.
type Item struct {
	log      *Log
	pos      int64
	delivery broker.Delivery
	state    state
	tries    int // deliveries to the receiver by this process
	due      time.Time
}

type state uint8

const (
	ready state = iota // never returned by Take
	out                // with the receiver
	back               // given back
	acked
)

// Token is what Delivery.Token holds.
type Token struct {
	Item *Item
	try  int
}

// Log is the unsettled part of one ordered log, such as a partition. It is not
// safe for concurrent use.
type Log struct {
	items []*Item
	bytes int // of those that are not acknowledged
	gone  bool
	first int // items before it are out or acked
}

// Add appends a delivery that stands at pos, which only grows. d.Attempt is the
// broker's count, which deliveries by this process are added to.
func (l *Log) Add(d broker.Delivery, pos int64) {
	l.items = append(l.items, &Item{log: l, pos: pos, delivery: d})
	l.bytes += d.Message.Size()
}

// Len is the number of messages that are held.
func (l *Log) Len() int { return len(l.items) }

// Bytes is the size of the messages that are held and not acknowledged.
func (l *Log) Bytes() int { return l.bytes }

// Each calls fn for every message that is not with the receiver.
func (l *Log) Each(fn func(broker.Delivery)) {
	for _, it := range l.items {
		if it.state == back || it.state == ready {
			fn(it.delivery)
		}
	}
}

// Drop ends the log: settling its items changes nothing from then on.
func (l *Log) Drop() { l.gone, l.items, l.bytes = true, nil, 0 }

// Take appends to ds what may be returned now, at most until ds has limit
// entries, and says when the next one that was given back is due (zero: none).
func (l *Log) Take(ds []broker.Delivery, limit int, now time.Time) ([]broker.Delivery, time.Time) {
	var due time.Time
	var held map[string]bool
	for ; l.first < len(l.items) && (l.items[l.first].state == out || l.items[l.first].state == acked); l.first++ {
	}
	for _, it := range l.items[l.first:] {
		if len(ds) >= limit {
			break
		}
		if it.state == out || it.state == acked {
			continue
		}
		key := it.delivery.Message.Key
		if key != "" && held[key] {
			continue
		}
		if it.state == back && it.due.After(now) {
			if key != "" {
				if held == nil {
					held = make(map[string]bool)
				}
				held[key] = true
			}
			if due.IsZero() || it.due.Before(due) {
				due = it.due
			}
			continue
		}
		it.state = out
		it.tries++
		d := it.delivery
		if d.Attempt > 0 {
			d.Attempt += it.tries - 1
		} else {
			d.Attempt = 0
		}
		d.Token = Token{Item: it, try: it.tries}
		ds = append(ds, d)
	}
	return ds, due
}

// Live reports whether the token's delivery is still the receiver's to settle,
// and returns its log.
func (t Token) Live() (*Log, bool) {
	if t.Item == nil || t.Item.log.gone || t.Item.state != out || t.Item.tries != t.try {
		return nil, false
	}
	return t.Item.log, true
}

// Origin is the source's own delivery, with the token that was given to Add.
func (t Token) Origin() broker.Delivery { return t.Item.delivery }

// Ack marks a live delivery as done, and forgets its message: where a log is
// settled from its head, many may wait acknowledged behind one that is not.
func (t Token) Ack() {
	t.Item.state = acked
	t.Item.log.bytes -= t.Item.delivery.Message.Size()
	t.Item.delivery.Message = postrider.Message{}
}

// GiveBack holds a live delivery, and its key behind it, until due.
func (t Token) GiveBack(due time.Time) {
	t.Item.state, t.Item.due = back, due
	t.Item.log.first = 0
}

// Trim drops the acknowledged head and returns the position behind it; ok is
// false if nothing was dropped.
func (l *Log) Trim() (next int64, ok bool) {
	n := 0
	for n < len(l.items) && l.items[n].state == acked {
		next, ok = l.items[n].pos+1, true
		n++
	}
	l.items = l.items[n:]
	l.first = max(l.first-n, 0)
	return next, ok
}

// Remove drops every acknowledged message, wherever it stands: for brokers that
// acknowledge one by one.
func (l *Log) Remove() {
	kept := l.items[:0]
	for _, it := range l.items {
		if it.state != acked {
			kept = append(kept, it)
		}
	}
	clear(l.items[len(kept):])
	l.items, l.first = kept, 0
}
