package redisbroker

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// A transaction holds at most so many messages and bytes: the server serves
// nobody else meanwhile.
const (
	mostMessages = 512
	mostBytes    = 1 << 20
)

// answers are those of one Deliver call; each of its shares sets its own.
type answers struct {
	errs   []error
	failed atomic.Bool
}

func (a *answers) set(i int, err error) {
	a.errs[i] = err
	if err != nil {
		a.failed.Store(true)
	}
}

// delivery sends the messages of one share, one transaction after the other.
type delivery struct {
	*answers
	s    *Sink
	l    *link
	msgs []postrider.Message
	open []int // not answered, in order

	barred map[string]error // why nothing more of a key is sent

	// One transaction.
	batch   []int
	streams []string
	cmds    []redis.Cmder
	hs      []envelope.Header
	buf     []byte
	args    []any
}

func (d *delivery) run(ctx context.Context) {
	if err := d.prepare(ctx); err != nil {
		d.giveUp(err)
		return
	}
	for len(d.open) > 0 {
		if err := ctx.Err(); err != nil {
			d.giveUp(broker.Unknown(fmt.Errorf("not sent: %w", err), "", ""))
			return
		}
		d.next()
		if len(d.batch) == 0 {
			continue
		}
		if err := d.send(ctx); err != nil {
			d.giveUp(err)
			return
		}
	}
}

// fail answers message i, and later ones of its key that nothing was sent.
func (d *delivery) fail(i int, err error) {
	d.set(i, err)
	if key := d.msgs[i].Key; key != "" {
		d.barred[key] = broker.NotTried(err)
	}
}

// prepare learns what the server can do, and that it can confirm copies if that
// is asked for: what it has taken and cannot confirm is sent again, each time.
func (d *delivery) prepare(ctx context.Context) error {
	if err := d.l.meet(ctx); err != nil {
		return err
	}
	wait := d.s.waiting(ctx)
	if wait == nil || d.l.confirms {
		return nil
	}
	if _, err := d.l.exec(ctx, wait); err != nil {
		return lost(ctx, false, err)
	}
	if err := d.s.copies(wait); err != nil {
		return broker.Outage(err, "NOT_CONFIRMED", "")
	}
	d.l.confirms = true
	return nil
}

// giveUp answers all that is open: the connection is of no use now.
func (d *delivery) giveUp(err error) {
	for _, i := range d.open {
		if behind := d.barred[d.msgs[i].Key]; behind != nil && d.msgs[i].Key != "" {
			d.set(i, behind)
			continue
		}
		d.set(i, broker.NotTried(err))
	}
	d.open = nil
}

// next takes the next transaction's messages out of those that are open. A key
// has all its messages of a transaction in one stream: what one of them is
// answered there the later ones are answered too. Its messages for another
// stream, and all behind them, wait for the next transaction.
func (d *delivery) next() {
	d.batch, d.streams = d.batch[:0], d.streams[:0]
	var (
		rest  []int
		in    map[string]string // the stream of each key, once there are two
		later map[string]bool
		size  int
	)
	for n, i := range d.open {
		m := &d.msgs[i]
		if err := d.barred[m.Key]; err != nil && m.Key != "" {
			d.set(i, err)
			continue
		}
		if len(d.batch) == mostMessages || size > 0 && size+m.Size() > mostBytes {
			rest = append(rest, d.open[n:]...)
			break
		}
		stream := d.s.Stream(m.Topic, m.Key)
		if later[m.Key] {
			rest = append(rest, i)
			continue
		}
		if in == nil && len(d.streams) > 0 && stream != d.streams[len(d.streams)-1] {
			in, later = make(map[string]string), make(map[string]bool)
			for at, j := range d.batch {
				in[d.msgs[j].Key] = d.streams[at]
			}
		}
		if in != nil && m.Key != "" {
			if other, ok := in[m.Key]; ok && other != stream {
				later[m.Key] = true
				rest = append(rest, i)
				continue
			}
			in[m.Key] = stream
		}
		if limit := d.s.opts.MaxMessageBytes; m.Size() > limit {
			d.fail(i, broker.Rejected(fmt.Errorf("%w: %d bytes, above the limit of %d (max-message)", errTooLarge, m.Size(), limit), "TOO_LARGE", stream))
			continue
		}
		size += m.Size()
		d.batch, d.streams = append(d.batch, i), append(d.streams, stream)
	}
	d.open = rest
}

// send executes the batch and answers its messages. Those that were not executed
// through no fault of their own are open again. The error says that the
// connection is of no use.
func (d *delivery) send(ctx context.Context) error {
	d.encode(ctx)
	adds := d.cmds
	var exec *redis.SliceCmd
	all := d.cmds
	if len(adds) > 1 {
		exec = redis.NewSliceCmd(ctx, "exec")
		all = make([]redis.Cmder, 0, len(adds)+3)
		all = append(all, redis.NewStatusCmd(ctx, "multi"))
		all = append(all, adds...)
		all = append(all, exec)
	}
	wait := d.s.waiting(ctx)
	if wait != nil {
		all = append(all, wait)
	}
	sent, err := d.l.exec(ctx, all...)
	if err == nil && exec != nil && isReply(all[0].Err()) { // MULTI or the greeting was refused
		sent, err = false, all[0].Err()
	}
	if err != nil {
		return d.drop(lost(ctx, sent, err))
	}
	switch {
	case exec == nil:
		d.settle(0, adds[0].(*redis.Cmd).Val(), adds[0].Err())
	case exec.Err() != nil:
		return d.aborted(adds, exec.Err())
	default:
		for n, v := range exec.Val() {
			err, _ := v.(error)
			d.settle(n, v, err)
		}
	}
	if wait != nil {
		d.confirm(wait)
	}
	return d.hopeless()
}

// drop answers the whole batch with err.
func (d *delivery) drop(err error) error {
	for _, i := range d.batch {
		if behind := d.barred[d.msgs[i].Key]; behind != nil && d.msgs[i].Key != "" {
			d.set(i, behind)
			continue
		}
		d.fail(i, err)
	}
	return err
}

// settle answers message n of the batch, whose reply is v or err.
func (d *delivery) settle(n int, v any, err error) {
	i := d.batch[n]
	if behind := d.barred[d.msgs[i].Key]; behind != nil && d.msgs[i].Key != "" {
		d.set(i, behind)
		return
	}
	switch {
	case err != nil && err != redis.Nil: //nolint:errorlint // the client gives it as it is
		d.fail(i, refused(err, d.streams[n]))
	case v == nil || err != nil:
		d.fail(i, broker.Outage(errNoStream, "NO_STREAM", d.streams[n]))
	}
}

// aborted answers a transaction of which nothing was executed: who is to blame
// is answered, the others are sent again, in their order.
func (d *delivery) aborted(adds []redis.Cmder, err error) error {
	var again []int
	blamed := false
	for n, i := range d.batch {
		switch own := adds[n].Err(); {
		case own != nil:
			blamed = true
			d.settle(n, nil, own)
		default:
			again = append(again, i)
		}
	}
	if !blamed {
		return d.drop(refused(err, ""))
	}
	d.open = append(again, d.open...)
	return d.hopeless()
}

// hopeless is the answer of this batch that is about the whole server, if one is.
func (d *delivery) hopeless() error {
	for _, i := range d.batch {
		if d.errs[i] == nil {
			continue
		}
		e := broker.Classify(d.errs[i])
		if e.Destination != "" || e.Class == broker.ClassRejected || e.Class == broker.ClassFailed {
			continue
		}
		if elsewhere(e.Code) {
			d.l.cut()
			if d.s.turn != nil {
				d.s.turn()
			}
		}
		return d.errs[i]
	}
	return nil
}

// waiting is the command that waits for copies; nil: none is asked for.
func (s *Sink) waiting(ctx context.Context) *redis.Cmd {
	most := strconv.Itoa(int(s.opts.Timeout.Milliseconds() / 2))
	switch {
	case s.opts.Synced:
		return redis.NewCmd(ctx, "waitaof", "1", strconv.Itoa(s.opts.Replicas), most)
	case s.opts.Replicas > 0:
		return redis.NewCmd(ctx, "wait", strconv.Itoa(s.opts.Replicas), most)
	}
	return nil
}

// copies says what is missing to the copies that are asked for.
func (s *Sink) copies(wait *redis.Cmd) error {
	if err := wait.Err(); err != nil {
		return err
	}
	var local, replicas int64
	switch v := wait.Val().(type) {
	case int64:
		replicas = v
	case []any:
		if len(v) == 2 {
			local, _ = v[0].(int64)
			replicas, _ = v[1].(int64)
		}
	}
	switch {
	case replicas < int64(s.opts.Replicas):
		return fmt.Errorf("%w: by %d replicas of %d", errShort, replicas, s.opts.Replicas)
	case s.opts.Synced && local < 1:
		return fmt.Errorf("%w: not by the server's own disk", errShort)
	}
	return nil
}

// confirm takes back the acknowledgements when too few copies were confirmed.
func (d *delivery) confirm(wait *redis.Cmd) {
	err := d.s.copies(wait)
	if err == nil {
		return
	}
	d.l.confirms = false
	for _, i := range d.batch {
		if d.errs[i] == nil {
			d.fail(i, broker.Unknown(err, "NOT_CONFIRMED", ""))
		}
	}
}

// encode makes the batch's commands.
func (d *delivery) encode(ctx context.Context) {
	d.cmds, d.args = d.cmds[:0], d.args[:0]
	now := time.Now()
	for n, i := range d.batch {
		from := len(d.args)
		d.entry(ctx, &d.msgs[i], d.streams[n], now)
		args := d.args[from:len(d.args):len(d.args)]
		d.cmds = append(d.cmds, redis.NewCmd(ctx, args...))
	}
}

// entry appends the arguments of one XADD.
func (d *delivery) entry(ctx context.Context, m *postrider.Message, stream string, now time.Time) {
	o := &d.s.opts
	d.args = append(d.args, "xadd", stream)
	if o.NoCreate {
		d.args = append(d.args, "nomkstream")
	}
	if d.l.has(hasXAckDel) && o.Trim != (Trim{}) {
		d.args = append(d.args, "acked")
	}
	if !o.NoDedup && m.ID != "" && d.l.has(hasIDMP) && d.s.idmp.of(ctx, d.l, stream) {
		d.args = append(d.args, "idmp", producer(m.Key), idempotent(m))
	}
	how := "~"
	if o.Trim.Exact {
		how = "="
	}
	switch {
	case o.Trim.MaxLen > 0:
		d.args = append(d.args, "maxlen", how, o.Trim.MaxLen)
	case o.Trim.MaxAge > 0:
		d.args = append(d.args, "minid", how, now.Add(-o.Trim.MaxAge).UnixMilli())
	}
	d.args = append(d.args, "*")
	carried := envelope.Carried(0)
	if stream == m.Topic {
		carried = envelope.TopicCarried
	}
	if cap(d.buf)-len(d.buf) < 1<<10 {
		d.buf = make([]byte, 0, 32<<10) // the values before keep the old one
	}
	d.hs, d.buf = d.s.codec.Append(d.hs[:0], d.buf[len(d.buf):], m, carried)
	for _, h := range d.hs {
		d.args = append(d.args, h.Name, h.Value)
	}
	d.args = append(d.args, payloadField, m.Payload)
}
