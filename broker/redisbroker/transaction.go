package redisbroker

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// A transaction holds at most so many messages and bytes: the server serves
// nobody else meanwhile.
const (
	mostMessages = 512
	mostBytes    = 1 << 20
)

// transaction is the messages of one transaction, or of a wave: one message per
// key at the most, so that what is refused has none behind it, and a pipeline
// will do, which costs the server a quarter less. It is used again for the next.
type transaction struct {
	wave    bool
	seen    map[string]struct{} // the keys of a wave
	batch   []int               // which messages
	streams []string            // where each goes
	wires   []*envelope.Wire
	size    int
	args    []any
	cmds    []redis.Cmder
}

// reset begins the next one and lets go of the messages of the one before.
func (t *transaction) reset() {
	for n := range t.batch {
		t.wires[n].Payload = nil
	}
	clear(t.args)
	clear(t.cmds)
	clear(t.streams)
	clear(t.seen)
	t.batch, t.streams, t.args, t.cmds, t.size = t.batch[:0], t.streams[:0], t.args[:0], t.cmds[:0], 0
}

// choose makes the next one a wave if that leaves no more than half of the
// messages for later.
func (t *transaction) choose(msgs []postrider.Message, open []int) {
	if t.seen == nil {
		t.seen = make(map[string]struct{}, mostMessages)
	}
	clear(t.seen)
	n, apart := min(len(open), mostMessages), 0
	for _, i := range open[:n] {
		key := msgs[i].Key
		if _, again := t.seen[key]; !again || key == "" {
			apart++
		}
		t.seen[key] = struct{}{}
	}
	t.wave = 2*apart >= n
	clear(t.seen)
}

// repeats reports whether a wave has a message of the key.
func (t *transaction) repeats(key string) bool {
	if !t.wave || key == "" {
		return false
	}
	_, again := t.seen[key]
	t.seen[key] = struct{}{}
	return again
}

// wire is where the next message is put.
func (t *transaction) wire() *envelope.Wire {
	if len(t.batch) == len(t.wires) {
		t.wires = append(t.wires, new(envelope.Wire))
	}
	return t.wires[len(t.batch)]
}

// full reports whether a message of size bytes must wait.
func (t *transaction) full(size int) bool {
	return len(t.batch) == mostMessages || t.size > 0 && t.size+size > mostBytes
}

// take adds message i, which is in the wire.
func (t *transaction) take(i int, stream string, w *envelope.Wire) {
	t.batch, t.streams = append(t.batch, i), append(t.streams, stream)
	t.size += w.Size()
}

// places knows which stream each key of a transaction has.
type places struct {
	tx    *transaction
	msgs  []postrider.Message
	in    map[string]string // nil as long as there is one stream
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

// value is an argument that the client writes without a copy of its header: as a
// pointer it fits into an interface.
type value []byte

// MarshalBinary implements encoding.BinaryMarshaler.
func (v *value) MarshalBinary() ([]byte, error) { return *v, nil }

// encode makes the commands.
func (t *transaction) encode(ctx context.Context, s *Sink, l *link, msgs []postrider.Message) []redis.Cmder {
	now := time.Now()
	for n, i := range t.batch {
		from := len(t.args)
		t.begin(ctx, s, l, &msgs[i], t.streams[n], now)
		w := t.wires[n]
		for j := range w.Headers {
			t.args = append(t.args, &w.Headers[j].Name, (*value)(&w.Headers[j].Value))
		}
		t.args = append(t.args, payloadField, (*value)(&w.Payload))
		args := t.args[from:len(t.args):len(t.args)]
		if t.wave || len(t.batch) == 1 {
			t.cmds = append(t.cmds, redis.NewCmd(ctx, args...))
		} else {
			t.cmds = append(t.cmds, redis.NewStatusCmd(ctx, args...)) // QUEUED
		}
	}
	return t.cmds
}

// begin appends an XADD's arguments before its fields
// (https://redis.io/docs/latest/commands/xadd/).
func (t *transaction) begin(ctx context.Context, s *Sink, l *link, m *postrider.Message, stream string, now time.Time) {
	o := &s.opts
	t.args = append(t.args, "xadd", stream)
	if o.NoCreate {
		t.args = append(t.args, "nomkstream")
	}
	if o.Trim != (Trim{}) && l.has(hasXAckDel) {
		t.args = append(t.args, "acked")
	}
	if !o.NoDedup && m.ID != "" && l.has(hasIDMP) && s.idmp.of(ctx, l, stream) {
		t.args = append(t.args, "idmp", producer(m.Key), idempotent(m))
	}
	how := "~"
	if o.Trim.Exact {
		how = "="
	}
	switch {
	case o.Trim.MaxLen > 0:
		t.args = append(t.args, "maxlen", how, o.Trim.MaxLen)
	case o.Trim.MaxAge > 0:
		t.args = append(t.args, "minid", how, now.Add(-o.Trim.MaxAge).UnixMilli())
	}
	t.args = append(t.args, "*")
}
