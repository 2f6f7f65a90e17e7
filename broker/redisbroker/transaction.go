package redisbroker

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// Limits of a transaction: the server serves no other client
// meanwhile.
const (
	mostMessages = 512
	mostBytes    = 1 << 20
)

// transaction has the messages of one transaction or of one wave. A wave has at most one
// message per key, so that no message is behind a refused one. A pipeline suffices for
// it, which costs the server a quarter less. The value is reused for the next.
type transaction struct {
	wave    bool
	seen    map[string]struct{} // the keys of a wave
	apart   int                 // the first apart open messages have different keys
	batch   []int               // indexes of the messages
	streams []string            // of each message
	wires   []*envelope.Wire
	dedup   []bool // whether the stream of each remembers ids
	size    int
	replies []reply
}

// reset begins the next transaction and releases the messages of the last one.
func (t *transaction) reset() {
	for n := range t.batch {
		t.wires[n].Payload = nil
	}
	clear(t.replies)
	clear(t.streams)
	clear(t.seen)
	t.batch, t.streams, t.size = t.batch[:0], t.streams[:0], 0
}

// choose makes the next transaction a wave if that leaves at most half of the
// messages for later.
func (t *transaction) choose(msgs []postrider.Message, open []int) {
	if t.seen == nil {
		t.seen = make(map[string]struct{}, mostMessages)
	}
	clear(t.seen)
	n, apart := min(len(open), mostMessages), 0
	t.apart = 0
	for _, i := range open[:n] {
		key := msgs[i].Key
		if _, again := t.seen[key]; !again || key == "" {
			apart++
		}
		t.seen[key] = struct{}{}
	}
	t.wave = 2*apart >= n
	if apart == n { // the usual case: no key is looked up twice
		t.apart = n
		return
	}
	clear(t.seen)
}

// repeats reports whether a wave already has a message of key, the key of the n-th open
// message.
func (t *transaction) repeats(n int, key string) bool {
	if !t.wave || key == "" || n < t.apart {
		return false
	}
	_, again := t.seen[key]
	t.seen[key] = struct{}{}
	return again
}

// wire returns the wire for the next message.
func (t *transaction) wire() *envelope.Wire {
	if len(t.batch) == len(t.wires) {
		t.wires = append(t.wires, new(envelope.Wire))
	}
	return t.wires[len(t.batch)]
}

// room returns the buffer for the batch's replies: with atomic those of a transaction,
// with copies that of the wait for copies too.
func (t *transaction) room(atomic, copies bool) []reply {
	n := len(t.batch)
	if atomic {
		n += 2
	}
	if copies {
		n++
	}
	t.replies = slices.Grow(t.replies[:0], n)[:n]
	return t.replies
}

// full reports whether a message of size bytes must wait.
func (t *transaction) full(size int) bool {
	return len(t.batch) == mostMessages || t.size > 0 && t.size+size > mostBytes
}

// take adds message i, which is encoded in w.
func (t *transaction) take(i int, stream string, w *envelope.Wire) {
	t.batch, t.streams = append(t.batch, i), append(t.streams, stream)
	t.size += w.Size()
}

// places records the stream of each key in a transaction.
type places struct {
	tx    *transaction
	msgs  []postrider.Message
	in    map[string]string // nil while there is only one stream
	later map[string]bool   // keys that wait
}

// waits reports whether a message must wait for the next transaction.
func (p *places) waits(key, stream string) bool {
	if p.tx.wave {
		return false
	}
	if p.in == nil {
		if len(p.tx.streams) == 0 || stream == p.tx.streams[0] {
			return false
		}
		p.in, p.later = make(map[string]string), make(map[string]bool)
		for _, i := range p.tx.batch {
			p.in[p.msgs[i].Key] = p.tx.streams[0]
		}
	}
	if key == "" {
		return false
	}
	if other, ok := p.in[key]; ok && other != stream {
		p.later[key] = true
		return true
	}
	p.in[key] = stream
	return false
}

// encode finds out which streams deduplicate, before the first command is written:
// afterwards only the messages' commands may be on the connection.
func (t *transaction) encode(ctx context.Context, s *Sink, l *link) {
	t.dedup = t.dedup[:0]
	for _, stream := range t.streams {
		t.dedup = append(t.dedup, !s.opts.NoDedup && l.has(hasIDMP) && s.idmp.of(ctx, l, stream))
	}
}

// write writes the messages' commands
// (https://redis.io/docs/latest/commands/xadd/).
func (t *transaction) write(out script, o *form, pipe string, msgs []postrider.Message) {
	for n, i := range t.batch {
		w, m := t.wires[n], &msgs[i]
		dedup := t.dedup[n] && m.ID != ""
		args := 2 + len(o.before) + len(o.behind) + 1 + 2*len(w.Headers) + 2
		if dedup {
			args += 3
		}
		out.begin(args)
		arg(out, "xadd")
		arg(out, t.streams[n])
		for _, a := range o.before {
			arg(out, a)
		}
		if dedup {
			arg(out, "idmp")
			arg(out, producer(pipe, cmp.Or(m.Key, m.ID)))
			arg(out, idempotent(m))
		}
		for _, a := range o.behind {
			arg(out, a)
		}
		arg(out, "*")
		for j := range w.Headers {
			arg(out, w.Headers[j].Name)
			arg(out, w.Headers[j].Value)
		}
		arg(out, payloadField)
		arg(out, w.Payload)
	}
}

// form has the arguments common to all XADDs of a batch: before the idempotent id, and
// behind it.
type form struct{ before, behind []string }

func (s *Sink) form(l *link, now time.Time) *form {
	o, f := &s.opts, new(form)
	if o.NoCreate {
		f.before = append(f.before, "nomkstream")
	}
	if o.Trim != (Trim{}) && l.has(hasXAckDel) {
		f.before = append(f.before, "acked")
	}
	how := "~"
	if o.Trim.Exact {
		how = "="
	}
	switch {
	case o.Trim.MaxLen > 0:
		f.behind = append(f.behind, "maxlen", how, strconv.FormatInt(o.Trim.MaxLen, 10))
	case o.Trim.MaxAge > 0:
		f.behind = append(f.behind, "minid", how, strconv.FormatInt(now.Add(-o.Trim.MaxAge).UnixMilli(), 10))
	}
	return f
}
