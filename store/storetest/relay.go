package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// longTTL is for leases that must not end during a case.
const longTTL = time.Minute

// rounds bounds every loop over a store: a store that never reaches its end fails
// the case instead of hanging it.
const rounds = 500

// relay is an instance that the suite plays. It keeps the epochs of its lanes as the
// engine does.
type relay struct {
	st    store.Store
	boot  string
	ttl   time.Duration
	epoch map[store.Lane]int64
	grant store.Grant
}

func newRelay(env Env, boot string) *relay {
	return &relay{st: env.Store(), boot: boot, ttl: longTTL, epoch: map[store.Lane]int64{}}
}

// solo starts a relay that must hold every lane.
func solo(ctx context.Context, env Env, boot string) (*relay, error) {
	r := newRelay(env, boot)
	if err := r.lease(ctx); err != nil {
		return nil, err
	}
	if len(r.grant.Lanes) != env.Features().Lanes {
		return nil, fmt.Errorf("the only instance holds %d of %d lanes", len(r.grant.Lanes), env.Features().Lanes)
	}
	return r, nil
}

func (r *relay) lease(ctx context.Context, changes ...func(*store.LeaseRequest)) error {
	req := store.LeaseRequest{BootID: r.boot, Instance: "instance " + r.boot, TTL: r.ttl}
	for _, change := range changes {
		change(&req)
	}
	g, err := r.st.Lease(ctx, req)
	if err != nil {
		return fmt.Errorf("lease for %s: %w", r.boot, err)
	}
	r.grant = g
	clear(r.epoch)
	for i, l := range g.Lanes {
		if i > 0 && g.Lanes[i-1].Lane >= l.Lane {
			return fmt.Errorf("lanes of the grant to %s are not ascending: %v", r.boot, lanesOf(g))
		}
		r.epoch[l.Lane] = l.Epoch
	}
	return nil
}

// shorten renews with a short lease and names the views that it has: in so short a lease
// a store has little time to read views, and leaves out lanes that it cannot read in time.
func (r *relay) shorten(ctx context.Context, ttl time.Duration) error {
	r.ttl = ttl
	known := maps.Clone(r.epoch)
	return r.lease(ctx, func(req *store.LeaseRequest) { req.Known = known })
}

// leave releases all lanes.
func (r *relay) leave(ctx context.Context) error {
	return r.lease(ctx, func(req *store.LeaseRequest) { req.Leave = true })
}

func observe(req *store.LeaseRequest) { req.Observe = true }

func lanesOf(g store.Grant) []store.Lane {
	lanes := make([]store.Lane, 0, len(g.Lanes))
	for _, l := range g.Lanes {
		lanes = append(lanes, l.Lane)
	}
	return lanes
}

// held returns the newest grant of a lane.
func (r *relay) held(lane store.Lane) (store.LaneGrant, error) {
	for _, l := range r.grant.Lanes {
		if l.Lane == lane {
			return l, nil
		}
	}
	return store.LaneGrant{}, fmt.Errorf("%s does not hold lane %d, it holds %v", r.boot, lane, lanesOf(r.grant))
}

// view leases again and returns the lane's parked view.
func (r *relay) view(ctx context.Context, lane store.Lane) (store.ParkedView, error) {
	if err := r.lease(ctx); err != nil {
		return store.ParkedView{}, err
	}
	l, err := r.held(lane)
	return l.Parked, err
}

func (r *relay) laneRead(lane store.Lane, after store.Position, limit int) store.LaneRead {
	return store.LaneRead{
		Lane: lane, Epoch: r.epoch[lane], After: after, MaxRecords: limit, MaxBytes: 64 << 20,
	}
}

// read reads one lane. A lane without a batch has not moved.
func (r *relay) read(ctx context.Context, lane store.Lane, after store.Position, limit int) (store.Batch, error) {
	return r.readOne(ctx, r.laneRead(lane, after, limit))
}

// due reads the lane's parked records that are due.
func (r *relay) due(ctx context.Context, lane store.Lane) (store.Batch, error) {
	lr := r.laneRead(lane, nil, 100)
	lr.Parked = true
	return r.readOne(ctx, lr)
}

// queues reads the queues of keys that are captured.
func (r *relay) queues(ctx context.Context, lane store.Lane, limit int, keys []string) (store.Batch, error) {
	lr := r.laneRead(lane, nil, limit)
	lr.Parked, lr.Keys = true, keys
	return r.readOne(ctx, lr)
}

func (r *relay) readOne(ctx context.Context, lr store.LaneRead) (store.Batch, error) {
	batches, err := r.st.Read(ctx, []store.LaneRead{lr})
	if err != nil {
		return store.Batch{}, fmt.Errorf("read lane %d: %w", lr.Lane, err)
	}
	if len(batches) == 0 {
		return store.Batch{Lane: lr.Lane, Position: lr.After}, nil
	}
	if len(batches) > 1 {
		return store.Batch{}, fmt.Errorf("a read of one lane returned %d batches", len(batches))
	}
	return batches[0], checkBatch(batches[0], lr)
}

// checkBatch checks the rules for every batch.
func checkBatch(b store.Batch, lr store.LaneRead) error {
	switch {
	case b.Lane != lr.Lane:
		return fmt.Errorf("a read of lane %d returned a batch of lane %d", lr.Lane, b.Lane)
	case len(b.Messages) != len(b.Meta):
		return fmt.Errorf("lane %d: %d messages but %d meta", b.Lane, len(b.Messages), len(b.Meta))
	case len(b.Messages) > lr.MaxRecords:
		return fmt.Errorf("lane %d: %d records, limit %d", b.Lane, len(b.Messages), lr.MaxRecords)
	case lr.Parked && b.Position != nil:
		return fmt.Errorf("lane %d: a parked batch has a position", b.Lane)
	case !lr.Parked && len(b.Messages) > 0 && b.Position == nil:
		return fmt.Errorf("lane %d: a batch with %d messages has no position", b.Lane, len(b.Messages))
	}
	for i, m := range b.Meta {
		if !lr.Parked && m.State != store.Pending {
			return fmt.Errorf("lane %d: record %d of an ordinary batch is %s", b.Lane, i, m.State)
		}
	}
	return nil
}

// all reads every held lane once from its settled position.
func (r *relay) all(ctx context.Context) (map[store.Lane]store.Batch, error) {
	out := map[store.Lane]store.Batch{}
	for _, lane := range lanesOf(r.grant) {
		b, err := r.read(ctx, lane, nil, 1000)
		if err != nil {
			return nil, err
		}
		if len(b.Messages) > 0 {
			out[lane] = b
		}
	}
	return out, nil
}

// laneOf finds the lane of a pending message of key.
func (r *relay) laneOf(ctx context.Context, key string) (store.Lane, error) {
	all, err := r.all(ctx)
	if err != nil {
		return 0, err
	}
	for lane, b := range all {
		for i := range b.Messages {
			if b.Messages[i].Key == key {
				return lane, nil
			}
		}
	}
	return 0, fmt.Errorf("no committed message of key %q can be read", key)
}

// settle applies one settlement that must not be lost.
func (r *relay) settle(ctx context.Context, s store.Settlement) error {
	lost, err := r.trySettle(ctx, s)
	if err == nil && lost {
		err = fmt.Errorf("settle lane %d with the newest epoch %d: reported lost", s.Lane, r.epoch[s.Lane])
	}
	if err != nil {
		return err
	}
	r.epoch[s.Lane]++
	return nil
}

// trySettle applies one settlement with the relay's own epoch and does not advance
// that epoch.
func (r *relay) trySettle(ctx context.Context, s store.Settlement) (lost bool, err error) {
	s.BootID, s.Epoch = r.boot, r.epoch[s.Lane]
	lanes, err := r.st.Settle(ctx, []store.Settlement{s})
	if err != nil {
		return false, fmt.Errorf("settle lane %d: %w", s.Lane, err)
	}
	if len(lanes) > 0 && (len(lanes) != 1 || lanes[0] != s.Lane) {
		return false, fmt.Errorf("settle lane %d: lost lanes are %v", s.Lane, lanes)
	}
	return len(lanes) > 0, nil
}

// take reads and settles all pending messages of the held lanes and returns their
// labels in the order of reading, lane after lane.
func (r *relay) take(ctx context.Context, limit int) ([]string, error) {
	var got []string
	for _, lane := range lanesOf(r.grant) {
		labels, err := r.takeLane(ctx, lane, limit)
		if err != nil {
			return nil, err
		}
		got = append(got, labels...)
	}
	return got, nil
}

func (r *relay) takeLane(ctx context.Context, lane store.Lane, limit int) ([]string, error) {
	var got []string
	for range rounds {
		b, err := r.read(ctx, lane, nil, limit)
		if err != nil {
			return nil, err
		}
		if len(b.Messages) == 0 && !b.More {
			return got, nil
		}
		got = append(got, labels(b)...)
		if err := r.settle(ctx, store.Settlement{Lane: lane, Position: b.Position, Delivered: len(b.Messages)}); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("lane %d still has records after %d settled batches", lane, rounds)
}

// everywhere commits messages and reads every lane once.
func everywhere(ctx context.Context, env Env, msgs []postrider.Message) (*relay, map[store.Lane]store.Batch, error) {
	if err := commit(ctx, env, msgs...); err != nil {
		return nil, nil, err
	}
	return look(ctx, env)
}

// look starts a relay and reads every lane once.
func look(ctx context.Context, env Env) (*relay, map[store.Lane]store.Batch, error) {
	r, err := solo(ctx, env, "a")
	if err != nil {
		return nil, nil, err
	}
	all, err := r.all(ctx)
	return r, all, err
}

// manyKeys makes one message for each of 64 keys.
func manyKeys() []postrider.Message {
	msgs := make([]postrider.Message, 64)
	for i := range msgs {
		msgs[i] = label(fmt.Sprintf("key %02d", i), fmt.Sprintf("m%d", i))
	}
	return msgs
}

// next releases all lanes and starts their next owner.
func (r *relay) next(ctx context.Context, env Env) (*relay, error) {
	if err := r.leave(ctx); err != nil {
		return nil, err
	}
	return solo(ctx, env, r.boot+"'s heir")
}

// label returns a message of key whose payload is its label.
func label(key, text string) postrider.Message {
	return postrider.Message{Topic: "orders", Key: key, Type: "order.placed", Payload: []byte(text)}
}

func labels(b store.Batch) []string {
	out := make([]string, len(b.Messages))
	for i := range b.Messages {
		out[i] = string(b.Messages[i].Payload)
	}
	return out
}

// series makes n labelled messages of one key, in order.
func series(key, prefix string, n int) []postrider.Message {
	out := make([]postrider.Message, n)
	for i := range out {
		out[i] = label(key, fmt.Sprintf("%s%03d", prefix, i))
	}
	return out
}

func texts(msgs []postrider.Message) []string {
	out := make([]string, len(msgs))
	for i := range msgs {
		out[i] = string(msgs[i].Payload)
	}
	return out
}

// commit enqueues messages in one transaction.
func commit(ctx context.Context, env Env, msgs ...postrider.Message) error {
	tx, err := begin(ctx, env, msgs...)
	if err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit of a writer: %w", err)
	}
	return nil
}

// begin enqueues messages in a transaction and leaves it open.
func begin(ctx context.Context, env Env, msgs ...postrider.Message) (Tx, error) {
	tx, err := env.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin of a writer: %w", err)
	}
	if err := tx.Enqueue(ctx, msgs...); err != nil {
		return nil, fmt.Errorf("enqueue: %w", joinRollback(ctx, tx, err))
	}
	return tx, nil
}

func joinRollback(ctx context.Context, tx Tx, err error) error {
	if rerr := tx.Rollback(ctx); rerr != nil {
		return fmt.Errorf("%w (and rollback: %w)", err, rerr)
	}
	return err
}

// same compares lists of labels in order.
func same(what string, got, want []string) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s: got %s, want %s", what, show(got), show(want))
	}
	return nil
}

// sameSet compares lists of labels as multisets.
func sameSet(what string, got, want []string) error {
	count := map[string]int{}
	for _, s := range want {
		count[s]++
	}
	for _, s := range got {
		count[s]--
	}
	var missing, extra []string
	for _, s := range slices.Sorted(maps.Keys(count)) {
		switch {
		case count[s] > 0:
			missing = append(missing, s)
		case count[s] < 0:
			extra = append(extra, s)
		}
	}
	if len(missing)+len(extra) > 0 {
		return fmt.Errorf("%s: missing %s, extra %s", what, show(missing), show(extra))
	}
	return nil
}

func show(list []string) string {
	const most = 12
	if len(list) > most {
		return fmt.Sprintf("[%s ... %d in all]", strings.Join(list[:most], " "), len(list))
	}
	return "[" + strings.Join(list, " ") + "]"
}

func tick(env Env) time.Duration {
	if d := env.Features().Tick; d > 0 {
		return d
	}
	return time.Second
}

// twoKeys finds two keys, in order, that share a lane. It settles all messages that
// it wrote to find them.
func twoKeys(ctx context.Context, env Env) (*relay, store.Lane, []string, error) {
	r, all, err := everywhere(ctx, env, manyKeys())
	if err != nil {
		return nil, 0, nil, err
	}
	if _, err := r.take(ctx, 100); err != nil {
		return nil, 0, nil, err
	}
	for lane, b := range all {
		if len(b.Messages) >= 2 {
			return r, lane, []string{b.Messages[0].Key, b.Messages[1].Key}, nil
		}
	}
	return nil, 0, nil, fmt.Errorf("no two of 64 keys share one of %d lanes", env.Features().Lanes)
}
