package redisbroker

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// answers has the errors of one Deliver call; each of its shares sets its own.
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
	pipe string
	msgs []postrider.Message
	open []int // unanswered messages, in order

	barred map[string]bar // why later messages of a key are not sent
	tx     *transaction
}

// bar bars the messages of a key behind message at.
type bar struct {
	at  int
	err error
}

// behind returns the error of message i if an earlier message of its key was refused.
func (d *delivery) behind(i int) error {
	if key := d.msgs[i].Key; key != "" && len(d.barred) > 0 {
		if b, ok := d.barred[key]; ok && i > b.at {
			return b.err
		}
	}
	return nil
}

func (d *delivery) run(ctx context.Context) {
	if err := d.prepare(ctx); err != nil {
		leave(d.l, broker.Classify(err).Code)
		d.giveUp(err)
		return
	}
	for len(d.open) > 0 {
		if err := ctx.Err(); err != nil {
			d.giveUp(broker.Unknown(fmt.Errorf("not sent: %w", err), "", ""))
			return
		}
		d.next()
		if len(d.tx.batch) == 0 {
			continue
		}
		if err := d.send(ctx); err != nil {
			d.giveUp(err)
			return
		}
	}
}

// fail records the error of message i, and bars later messages of its key, which are
// not sent.
func (d *delivery) fail(i int, err error) {
	d.set(i, err)
	key := d.msgs[i].Key
	if b, ok := d.barred[key]; key != "" && (!ok || i < b.at) {
		d.barred[key] = bar{i, broker.NotTried(err)}
	}
}

// prepare learns the server's abilities, and checks that it can confirm copies if the
// options ask for them: messages that it stores but cannot confirm would be sent again
// each time.
func (d *delivery) prepare(ctx context.Context) error {
	if err := d.l.meet(ctx); err != nil {
		return err
	}
	if err := d.l.canTransact(ctx); err != nil {
		return err
	}
	wait := d.s.waiting()
	if wait == nil || d.l.confirms {
		return nil
	}
	var r [1]reply
	if _, err := d.l.talk(ctx, func(out script) { out.command(wait...) }, r[:]); err != nil {
		return lost(ctx, false, err)
	}
	if err := d.s.copies(r[0]); err != nil {
		return broker.Outage(err, codeNotConfirmed, "")
	}
	d.l.confirms = true
	return nil
}

// canTransact makes sure that the server allows transactions: when the user's permissions
// or a proxy refuse MULTI, the commands after it are executed nevertheless,
// one by one.
func (l *link) canTransact(ctx context.Context) error {
	if l.transacts {
		return nil
	}
	var r [2]reply
	ask := func(out script) {
		out.command("multi")
		out.command("exec")
	}
	if _, err := l.talk(ctx, ask, r[:]); err != nil {
		return lost(ctx, false, err)
	}
	for _, v := range r {
		if v.err != nil {
			l.cut() // it may be inside a transaction
			return withoutTransactions(v.err)
		}
	}
	l.transacts = true
	return nil
}

// giveUp resolves all open messages: the connection is unusable. The first
// message of each key gets the cause itself: messages that are
// merely not tried would not reveal that the server is gone.
func (d *delivery) giveUp(err error) {
	for _, i := range d.open {
		if behind := d.behind(i); behind != nil {
			d.set(i, behind)
			continue
		}
		d.fail(i, err)
	}
	d.open = nil
}

// next takes the next messages out of the open ones: a wave if there are many
// keys, otherwise a transaction. All messages of a key
// in one transaction have the same stream, where a failure of the first is a failure of
// the later ones too. The key's messages for another
// stream, and all behind them, wait for the next transaction.
func (d *delivery) next() {
	d.tx.reset()
	d.tx.choose(d.msgs, d.open)
	var rest []int
	p := places{tx: d.tx, msgs: d.msgs}
	for n, i := range d.open {
		m := &d.msgs[i]
		if err := d.behind(i); err != nil {
			d.set(i, err)
			continue
		}
		if d.tx.full(0) {
			rest = append(rest, d.open[n:]...)
			break
		}
		if p.later[m.Key] || d.tx.repeats(n, m.Key) {
			rest = append(rest, i)
			continue
		}
		w := d.tx.wire()
		_, stream, err := d.s.frame(w, m)
		if err != nil {
			d.fail(i, err)
			continue
		}
		if d.tx.full(w.Size()) { // also in a wave: all later messages wait as well
			rest = append(rest, d.open[n:]...)
			break
		}
		if p.waits(m.Key, stream) {
			rest = append(rest, i)
			continue
		}
		d.tx.take(i, stream, w)
	}
	d.open = rest
}

// send sends the batch and resolves its messages. Messages that were not executed
// through no fault of their own are open again. On error the
// connection is unusable.
func (d *delivery) send(ctx context.Context) error {
	d.tx.encode(ctx, d.s, d.l)
	wait, atomic := d.s.waiting(), len(d.tx.batch) > 1 && !d.tx.wave
	replies := d.tx.room(atomic, wait != nil)
	sent, err := d.l.talk(ctx, func(out script) {
		if atomic {
			out.command("multi")
		}
		d.tx.write(out, d.s.form(d.l, time.Now()), d.pipe, d.msgs)
		if atomic {
			out.command("exec")
		}
		if wait != nil {
			out.command(wait...)
		}
	}, replies)
	if err != nil {
		err = d.drop(lost(ctx, sent, err))
		leave(d.l, broker.Classify(err).Code)
		return err
	}
	adds := replies[:len(d.tx.batch)]
	if atomic {
		if adds, err = d.executed(replies); adds == nil {
			return err
		}
	}
	for n, add := range adds {
		d.settle(n, add)
	}
	if wait != nil {
		d.confirm(replies[len(replies)-1])
	}
	return d.hopeless()
}

// executed picks the replies to the messages of a transaction from the replies to
// MULTI, to the queued commands, and to EXEC. It returns nil if the messages were
// resolved otherwise.
func (d *delivery) executed(replies []reply) ([]reply, error) {
	n := len(d.tx.batch)
	multi, adds, exec := replies[0], replies[1:1+n], replies[1+n]
	switch {
	case multi.err != nil: // the commands after the MULTI may have been executed
		d.l.transacts = false
		return nil, d.drop(broker.Unknown(withoutTransactions(multi.err), code(multi.err.Error()), ""))
	case exec.err != nil:
		return nil, d.aborted(adds, exec.err)
	case len(exec.items) != n:
		return nil, d.drop(broker.Unknown(errNoAnswer, "", ""))
	}
	return exec.items, nil
}

// drop resolves the whole batch with err.
func (d *delivery) drop(err error) error {
	for _, i := range d.tx.batch {
		if behind := d.behind(i); behind != nil {
			d.set(i, behind)
			continue
		}
		d.fail(i, err)
	}
	return err
}

// settle resolves message n of the batch, whose reply is v.
func (d *delivery) settle(n int, v reply) {
	i := d.tx.batch[n]
	if behind := d.behind(i); behind != nil {
		d.set(i, behind)
		return
	}
	switch {
	case v.err != nil:
		d.fail(i, refused(v.err, d.tx.streams[n]))
	case v.null && d.s.opts.NoCreate:
		d.fail(i, broker.Outage(errNoStream, codeNoStream, d.tx.streams[n]))
	case v.null:
		d.fail(i, broker.Unknown(errNoAnswer, "", d.tx.streams[n]))
	}
}

// aborted handles a transaction that was not executed: it resolves the messages that
// were refused, and the others are sent again, in their order.
func (d *delivery) aborted(adds []reply, err error) error {
	var again []int
	blamed := false
	for n, i := range d.tx.batch {
		switch own := adds[n]; {
		case own.err != nil:
			blamed = true
			d.settle(n, own)
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

// hopeless returns an error of this batch that concerns the whole server, or nil.
func (d *delivery) hopeless() error {
	for _, i := range d.tx.batch {
		if d.errs[i] == nil {
			continue
		}
		e := broker.Classify(d.errs[i])
		if e.Destination != "" || e.Class == broker.ClassRejected || e.Class == broker.ClassFailed {
			continue
		}
		leave(d.l, e.Code)
		return d.errs[i]
	}
	return nil
}

// leave switches to the next host if the code means that this server is not the primary.
func leave(l *link, code string) {
	if elsewhere(code) {
		l.leave()
	}
}

// waiting returns the command that waits for copies, nil if the options ask for none.
func (s *Sink) waiting() []string {
	most := strconv.Itoa(int(s.opts.Timeout.Milliseconds() / 2))
	switch {
	case s.opts.Synced:
		return []string{"waitaof", "1", strconv.Itoa(s.opts.Replicas), most}
	case s.opts.Replicas > 0:
		return []string{"wait", strconv.Itoa(s.opts.Replicas), most}
	}
	return nil
}

// copies returns an error if fewer copies than required were confirmed.
func (s *Sink) copies(wait reply) error {
	if wait.err != nil {
		return wait.err
	}
	local, replicas := int64(0), wait.n
	if len(wait.items) == 2 {
		local, replicas = wait.items[0].n, wait.items[1].n
	}
	switch {
	case replicas < int64(s.opts.Replicas):
		return fmt.Errorf("%w: by %d replicas of %d", errShort, replicas, s.opts.Replicas)
	case s.opts.Synced && local < 1:
		return fmt.Errorf("%w: not by the server's own disk", errShort)
	}
	return nil
}

// confirm turns acknowledgements into unknown when too few copies were confirmed.
func (d *delivery) confirm(wait reply) {
	err := d.s.copies(wait)
	if err == nil {
		return
	}
	d.l.confirms = false
	for _, i := range d.tx.batch {
		if d.errs[i] == nil {
			d.fail(i, broker.Unknown(err, codeNotConfirmed, ""))
		}
	}
}
