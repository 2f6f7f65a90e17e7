package brokertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

func memberCases() []Case {
	return []Case{
		{"source/members", "when receivers of one name join, leave and are killed, nothing is lost or steps ahead, and only unsettled messages are received twice", sourceMembers},
		{"source/closed", "Receive and Settle end when the source is closed", sourceClosed},
		{"source/cancel", "Receive ends with its context and loses nothing", sourceCancel},
	}
}

// membersBatch is the most that a member has unsettled.
const membersBatch = 7

// journal has the messages that all receivers of one name have seen together.
type journal struct {
	mu      sync.Mutex
	change  chan struct{}
	high    map[string]int64 // per key: the highest version received
	settled map[string]bool  // by id
	doubled int              // received again although settled
	err     error
}

func newJournal() *journal {
	return &journal{change: make(chan struct{}), high: make(map[string]int64), settled: make(map[string]bool)}
}

func (j *journal) note(fn func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fn()
	close(j.change)
	j.change = make(chan struct{})
}

func (j *journal) received(ds []broker.Delivery) {
	j.note(func() {
		for _, d := range ds {
			m := d.Message
			if m.Version > j.high[m.Key]+1 {
				j.err = fmt.Errorf("key %s: version %d is received when the highest so far is %d", m.Key, m.Version, j.high[m.Key])
			}
			j.high[m.Key] = max(j.high[m.Key], m.Version)
			if j.settled[m.ID] {
				j.doubled++
			}
		}
	})
}

// until waits for n settled messages.
func (j *journal) until(ctx context.Context, n int) error {
	for {
		j.mu.Lock()
		have, err, change := len(j.settled), j.err, j.change
		j.mu.Unlock()
		if err != nil || have >= n {
			return err
		}
		select {
		case <-change:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d messages were settled: %w", have, n, ctx.Err())
		}
	}
}

// member receives and settles until its context ends.
type member struct {
	cancel context.CancelFunc
	done   chan struct{}
	seen   chan struct{} // holds one when something was received
}

func (j *journal) work(ctx context.Context, src broker.Source) *member {
	life, cancel := context.WithCancel(ctx)
	m := &member{cancel: cancel, done: make(chan struct{}), seen: make(chan struct{}, 1)}
	go func() {
		defer close(m.done)
		for life.Err() == nil {
			ds, err := src.Receive(life, membersBatch)
			if err != nil {
				select { // a broker that is moving partitions may say so
				case <-time.After(20 * time.Millisecond):
				case <-life.Done():
				}
				continue
			}
			j.received(ds)
			select {
			case m.seen <- struct{}{}:
			default:
			}
			if settle(ctx, life, src, ds) {
				j.note(func() {
					for _, d := range ds {
						j.settled[d.Message.ID] = true
					}
				})
			}
		}
	}()
	return m
}

// settle acknowledges, with retries while the member lives.
func settle(ctx, life context.Context, src broker.Source, ds []broker.Delivery) bool {
	for {
		call, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := src.Settle(call, verdicts(ds))
		cancel()
		if err == nil {
			return true
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-life.Done():
			return false
		}
	}
}

func (m *member) stop() {
	m.cancel()
	<-m.done
}

// The case sends its messages in small steps, so that members join and
// leave while some are in flight.
const (
	membersKeys  = 20
	membersStep  = 20
	membersWave  = 400
	membersPause = 100 * time.Millisecond
)

// feed sends msgs step by step, until they are used up or enough reports true. It
// slows down while it waits for that: a member may join late, and
// there must be messages left for it.
func feed(ctx context.Context, env *Env, msgs []postrider.Message, enough func() bool) (rest []postrider.Message, err error) {
	pause := membersPause
	for len(msgs) > 0 && (enough == nil || !enough()) {
		if err := accept(ctx, env.Sink, msgs[:membersStep]); err != nil {
			return nil, err
		}
		msgs = msgs[membersStep:]
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if enough != nil {
			pause += pause / 8
		}
	}
	return msgs, nil
}

// after returns a function that returns true from its n-th call on.
func after(n int) func() bool {
	return func() bool { n--; return n < 0 }
}

// sourceMembers lets a receiver join, another one leave and one be killed while
// messages arrive.
func sourceMembers(ctx context.Context, env *Env) error {
	if env.Source == nil || env.Mortal == nil {
		return notApplicable("no receiver can be killed")
	}
	const changes = 4
	all := messages(env.Topic, 2*membersWave, membersKeys)
	j := newJournal()
	first, leave, err := env.Source(ctx)
	if err != nil {
		return err
	}
	a := j.work(ctx, first)
	rest, err := feed(ctx, env, all, func() bool { return len(a.seen) > 0 })
	mortal, kill, merr := env.Mortal(ctx) // joins
	if err = errors.Join(err, merr); err != nil {
		a.stop()
		leave()
		return err
	}
	b := j.work(ctx, mortal)
	joined := func() bool { return len(b.seen) > 0 }
	if !env.Shared {
		joined = after(10)
	}
	if rest, err = feed(ctx, env, rest, joined); err == nil && env.Shared && len(b.seen) == 0 {
		err = errors.New("a second receiver gets nothing")
	}
	a.stop()
	leave()
	if err == nil {
		rest, err = feed(ctx, env, rest, after(10))
	}
	if err == nil {
		err = j.until(ctx, len(all)-len(rest)-5*membersStep)
	}
	b.stop() // is killed, with unsettled messages
	hand, cancel := context.WithTimeout(ctx, time.Second)
	if ds, rerr := mortal.Receive(hand, membersBatch); rerr == nil {
		j.received(ds)
	}
	cancel()
	kill()
	if err != nil {
		return err
	}
	last, closeLast, err := env.Source(ctx)
	if err != nil {
		return err
	}
	defer closeLast()
	c := j.work(ctx, last)
	defer c.stop()
	if _, err = feed(ctx, env, rest, nil); err != nil {
		return err
	}
	if err = j.until(ctx, len(all)); err != nil {
		return err
	}
	return j.verdict(all, changes*2*membersBatch)
}

func (j *journal) verdict(all []postrider.Message, doubles int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, m := range all {
		if !j.settled[m.ID] {
			return fmt.Errorf("message %s was never received", m.ID)
		}
	}
	if j.doubled > doubles {
		return fmt.Errorf("%d messages were received again although they were settled; at most %d may be", j.doubled, doubles)
	}
	return j.err
}

// soon runs fn and checks that it ends.
func soon(what string, fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		return fmt.Errorf("%s has not ended after a minute", what)
	}
}

func sourceClosed(ctx context.Context, env *Env) error {
	src, closing, err := start(ctx, env, 10, 2)
	if err != nil {
		return err
	}
	ds, err := receive(ctx, src, env.atOnce(10, 2))
	if err != nil {
		closing()
		return err
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := src.Receive(ctx, 1)
		waiting <- err
	}()
	closing()
	err = soon("a Receive that waited when the source was closed", func() error {
		if err := <-waiting; err == nil {
			return errors.New("Receive returns without error from a closed source that had nothing left")
		}
		if _, err := src.Receive(ctx, 1); err == nil {
			return errors.New("a closed source receives")
		}
		return nil
	})
	if err != nil {
		return err
	}
	var settled error
	err = soon("Settle on a closed source", func() error {
		settled = src.Settle(ctx, verdicts(ds))
		return nil
	})
	if err != nil || settled == nil {
		return err // settled late or changed nothing: both are right
	}
	next, closeNext, err := env.Source(ctx)
	if err != nil {
		return err
	}
	defer closeNext()
	again, err := drain(ctx, next, 10)
	if err != nil {
		return fmt.Errorf("Settle failed (%w), and the messages are not received again: %w", settled, err)
	}
	return inOrder(again)
}

func sourceCancel(ctx context.Context, env *Env) error {
	src, closing, err := start(ctx, env, 200, 5)
	if err != nil {
		return err
	}
	defer closing()
	var all []broker.Delivery
	for round := 0; len(all) < 200; round++ {
		wait, cancel := context.WithTimeout(ctx, time.Duration(1+round%50)*time.Millisecond)
		var ds []broker.Delivery
		err := soon("Receive whose context has ended", func() error {
			ds, _ = src.Receive(wait, 9)
			return nil
		})
		cancel()
		if err == nil && len(ds) > 0 {
			err = src.Settle(ctx, verdicts(ds))
		}
		if err != nil {
			return err
		}
		all = append(all, ds...)
		if ctx.Err() != nil {
			return fmt.Errorf("%d of 200 messages were received: %w", len(all), ctx.Err())
		}
	}
	return inOrder(all)
}
