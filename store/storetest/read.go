package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

func readCases() []Case {
	return []Case{
		{
			Name: "read/order", Run: readOrder,
			Promise: "the messages of a key are read in the order of their enqueues, within and across transactions",
		},
		{
			Name: "read/numbers", Run: readNumbers,
			Promise: "every record has a number of its own above zero, higher than those of its key before it",
		},
		{
			Name: "read/uncommitted", Run: readUncommitted,
			Promise: "uncommitted records are not read, and rolled back ones never are",
		},
		{
			Name: "read/not-held-up", Needs: NeedsConcurrentWriters, Run: readNotHeldUp,
			Promise: "an open transaction holds up no message of another one",
		},
		{
			Name: "read/paging", Run: readPaging,
			Promise: "a batch has at most MaxRecords records, the next one continues after its end, and More is true if there is a next one",
		},
		{
			Name: "read/bytes", Run: readBytes,
			Promise: "a batch has at most MaxBytes bytes of messages",
		},
		{
			Name: "read/bytes-at-least-one", Run: readBytesAtLeastOne,
			Promise: "at least one record is returned whatever its size",
		},
		{
			Name: "read/ahead", Run: readAhead,
			Promise: "reading continues after an unsettled batch, and settling the last position settles all",
		},
		{
			Name: "read/ahead-while-settling", Run: readAheadWhileSettling,
			Promise: "a position read ahead stays valid when earlier batches are settled",
		},
		{
			Name: "read/changes-nothing", Run: readChangesNothing,
			Promise: "Read changes nothing in the database: any instance reads unsettled records again",
		},
		{
			Name: "read/steady-position", Run: readSteadyPosition,
			Promise: "a position has the same bytes as long as nothing moves",
		},
		{
			Name: "read/lanes-asked", Run: readLanesAsked,
			Promise: "a read returns at most one batch per requested lane and none of other lanes",
		},
		{
			Name: "read/not-before", Run: readNotBefore,
			Promise: "a scheduled record is read at its place, with its remaining wait by the database's clock",
		},
		{
			Name: "read/concurrent", Run: readConcurrent,
			Promise: "the methods of a store are safe for concurrent use",
		},
	}
}

func readOrder(ctx context.Context, env Env) error {
	want := map[string][]string{}
	for round := range 5 {
		var msgs []postrider.Message
		for i := range 12 {
			key := fmt.Sprintf("key %d", i%3)
			msgs = append(msgs, label(key, fmt.Sprintf("%d.%02d", round, i)))
			want[key] = append(want[key], fmt.Sprintf("%d.%02d", round, i))
		}
		if err := commit(ctx, env, msgs...); err != nil {
			return err
		}
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	got := map[string][]string{}
	for _, lane := range lanesOf(r.grant) {
		var after store.Position
		for range rounds {
			b, err := r.read(ctx, lane, after, 7)
			if err != nil {
				return err
			}
			for i := range b.Messages {
				got[b.Messages[i].Key] = append(got[b.Messages[i].Key], string(b.Messages[i].Payload))
			}
			if after = b.Position; len(b.Messages) == 0 {
				break
			}
		}
	}
	for key := range want {
		if err := same(key, got[key], want[key]); err != nil {
			return err
		}
	}
	return nil
}

func readNumbers(ctx context.Context, env Env) error {
	for range 3 {
		if err := commit(ctx, env, append(series("k", "k", 5), series("", "free", 5)...)...); err != nil {
			return err
		}
	}
	_, all, err := look(ctx, env)
	if err != nil {
		return err
	}
	seen, last := map[int64]bool{}, int64(0)
	for lane, b := range all {
		for i, meta := range b.Meta {
			switch {
			case meta.Seq <= 0 || seen[meta.Seq]:
				return fmt.Errorf("lane %d: record %d has number %d, which is zero or was used before", lane, i, meta.Seq)
			case b.Messages[i].Key == "k" && meta.Seq <= last:
				return fmt.Errorf("number %d of the key follows number %d", meta.Seq, last)
			case b.Messages[i].Key == "k":
				last = meta.Seq
			}
			seen[meta.Seq] = true
		}
	}
	if len(seen) != 30 {
		return fmt.Errorf("%d records have numbers, want 30", len(seen))
	}
	return nil
}

func readUncommitted(ctx context.Context, env Env) error {
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	for _, end := range []string{"rollback", "commit", "rollback"} {
		tx, err := begin(ctx, env, series("k", end, 3)...)
		if err != nil {
			return err
		}
		open, err := r.all(ctx)
		if err != nil {
			return joinRollback(ctx, tx, err)
		}
		finish := tx.Rollback
		if end == "commit" {
			finish = tx.Commit
		}
		if err := finish(ctx); err != nil {
			return fmt.Errorf("%s: %w", end, err)
		}
		for lane, b := range open {
			return fmt.Errorf("lane %d returned %s of an open transaction", lane, show(labels(b)))
		}
		got, err := r.take(ctx, 10)
		if err != nil {
			return err
		}
		var want []string
		if end == "commit" {
			want = texts(series("k", end, 3))
		}
		if err := same("after "+end, got, want); err != nil {
			return err
		}
	}
	return nil
}

func readNotHeldUp(ctx context.Context, env Env) error {
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	open, err := begin(ctx, env, series("slow", "slow", 3)...)
	if err != nil {
		return err
	}
	var want []string
	for i := range 40 {
		key := fmt.Sprintf("key %d", i)
		want = append(want, key)
		if err := commit(ctx, env, label(key, key)); err != nil {
			return joinRollback(ctx, open, err)
		}
	}
	got, err := r.take(ctx, 10)
	if err == nil {
		err = sameSet("while another transaction is open", got, want)
	}
	return joinEnd(ctx, open, err)
}

// joinEnd rolls back an open transaction and keeps the first error.
func joinEnd(ctx context.Context, tx Tx, err error) error {
	if rerr := tx.Rollback(ctx); err == nil && rerr != nil {
		return fmt.Errorf("rollback: %w", rerr)
	}
	return err
}

// front commits 5 messages of one key, starts a relay and reads them.
func front(ctx context.Context, env Env) (*relay, store.Batch, error) {
	r, lane, err := filled(ctx, env, 5)
	if err != nil {
		return nil, store.Batch{}, err
	}
	b, err := r.read(ctx, lane, nil, 10)
	return r, b, err
}

// filled commits n messages of one key and starts a relay.
func filled(ctx context.Context, env Env, n int) (*relay, store.Lane, error) {
	if err := commit(ctx, env, series("k", "m", n)...); err != nil {
		return nil, 0, err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return nil, 0, err
	}
	lane, err := r.laneOf(ctx, "k")
	return r, lane, err
}

func readPaging(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 25)
	if err != nil {
		return err
	}
	var got []string
	var after store.Position
	for i, want := range []int{10, 10, 5} {
		b, err := r.read(ctx, lane, after, 10)
		if err != nil {
			return err
		}
		if len(b.Messages) != want {
			return fmt.Errorf("page %d of 25 records has %d, want %d", i+1, len(b.Messages), want)
		}
		if more := i < 2; b.More != more {
			return fmt.Errorf("page %d of 3: More is %v", i+1, b.More)
		}
		if bytes.Equal(b.Position, after) {
			return fmt.Errorf("page %d has records, but its position did not move", i+1)
		}
		got, after = append(got, labels(b)...), b.Position
	}
	b, err := r.read(ctx, lane, after, 10)
	if err != nil {
		return err
	}
	if len(b.Messages) != 0 || b.More {
		return fmt.Errorf("after the last page: %s, More is %v", show(labels(b)), b.More)
	}
	return same("pages", got, texts(series("k", "m", 25)))
}

func readBytes(ctx context.Context, env Env) error {
	const size = 10_000
	var msgs []postrider.Message
	for range 6 {
		msgs = append(msgs, label("k", string(bytes.Repeat([]byte("x"), size))))
	}
	if err := commit(ctx, env, msgs...); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	lane, err := r.laneOf(ctx, "k")
	if err != nil {
		return err
	}
	var after store.Position
	total := 0
	for range rounds {
		lr := r.laneRead(lane, after, 100)
		lr.MaxBytes = size*5/2 + 1000
		b, err := r.readOne(ctx, lr)
		if err != nil {
			return err
		}
		if len(b.Messages) == 0 {
			break
		}
		if len(b.Messages) > 2 {
			return fmt.Errorf("%d records of %d bytes were read, limit %d bytes", len(b.Messages), size, lr.MaxBytes)
		}
		total += len(b.Messages)
		if total < len(msgs) && !b.More {
			return fmt.Errorf("More is false after %d of %d records", total, len(msgs))
		}
		after = b.Position
	}
	if total != len(msgs) {
		return fmt.Errorf("%d of %d records were read in pages limited by bytes", total, len(msgs))
	}
	return nil
}

func readBytesAtLeastOne(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 3)
	if err != nil {
		return err
	}
	var got []string
	var after store.Position
	for range 3 {
		lr := r.laneRead(lane, after, 100)
		lr.MaxBytes = 1
		b, err := r.readOne(ctx, lr)
		if err != nil {
			return err
		}
		if len(b.Messages) != 1 {
			return fmt.Errorf("MaxBytes 1 returned %d records, want 1", len(b.Messages))
		}
		got, after = append(got, labels(b)...), b.Position
	}
	return same("one at a time", got, texts(series("k", "m", 3)))
}

func readAhead(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 9)
	if err != nil {
		return err
	}
	var got []string
	var after store.Position
	for range 3 {
		b, err := r.read(ctx, lane, after, 3)
		if err != nil {
			return err
		}
		got, after = append(got, labels(b)...), b.Position
	}
	if err := same("three unsettled batches", got, texts(series("k", "m", 9))); err != nil {
		return err
	}
	if err := r.settle(ctx, store.Settlement{Lane: lane, Position: after, Delivered: 9}); err != nil {
		return err
	}
	rest, err := r.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("after the last of three batches was settled", rest, nil)
}

func readAheadWhileSettling(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 12)
	if err != nil {
		return err
	}
	var got []string
	var unsettled []store.Batch
	var after store.Position
	for range rounds {
		b, err := r.read(ctx, lane, after, 2)
		if err != nil {
			return err
		}
		if len(b.Messages) > 0 {
			got, after, unsettled = append(got, labels(b)...), b.Position, append(unsettled, b)
		}
		if len(unsettled) < 3 && len(b.Messages) > 0 {
			continue // two batches stay unsettled behind the reader
		}
		if len(unsettled) == 0 {
			break
		}
		oldest := unsettled[0]
		unsettled = unsettled[1:]
		err = r.settle(ctx, store.Settlement{Lane: lane, Position: oldest.Position, Delivered: len(oldest.Messages)})
		if err != nil {
			return err
		}
	}
	if err := same("read ahead", got, texts(series("k", "m", 12))); err != nil {
		return err
	}
	rest, err := r.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("after everything was settled", rest, nil)
}

func readChangesNothing(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 6)
	if err != nil {
		return err
	}
	before, err := r.held(lane)
	if err != nil {
		return err
	}
	if _, err := r.read(ctx, lane, nil, 4); err != nil {
		return err
	}
	again, err := r.read(ctx, lane, nil, 10)
	if err != nil {
		return err
	}
	if err := same("read again", labels(again), texts(series("k", "m", 6))); err != nil {
		return err
	}
	if err := r.lease(ctx); err != nil {
		return err
	}
	after, err := r.held(lane)
	if err != nil {
		return err
	}
	if !bytes.Equal(before.Position, after.Position) || before.Epoch != after.Epoch {
		return errors.New("reading moved the settled position or the epoch of the lane")
	}
	if err := r.leave(ctx); err != nil {
		return err
	}
	b, err := solo(ctx, env, "b")
	if err != nil {
		return err
	}
	got, err := b.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("read by the next owner", got, texts(series("k", "m", 6)))
}

// readSteadyPosition allows a few moves: a position contains running transactions,
// also those of other work in the same database cluster.
func readSteadyPosition(ctx context.Context, env Env) error {
	r, lane, err := filled(ctx, env, 3)
	if err != nil {
		return err
	}
	first, err := r.read(ctx, lane, nil, 10)
	if err != nil {
		return err
	}
	after := first.Position
	for range 20 {
		b, err := r.read(ctx, lane, after, 10)
		if err != nil {
			return err
		}
		if len(b.Messages) > 0 {
			return fmt.Errorf("%s was read after the end", show(labels(b)))
		}
		if bytes.Equal(b.Position, after) {
			return nil
		}
		after = b.Position
	}
	return errors.New("the position of an idle lane changed in each of 20 reads")
}

func readLanesAsked(ctx context.Context, env Env) error {
	var msgs []postrider.Message
	for i := range 64 {
		msgs = append(msgs, label(fmt.Sprintf("order-%d", i), "x"))
	}
	if err := commit(ctx, env, msgs...); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	lanes := lanesOf(r.grant)[:env.Features().Lanes-1]
	var reads []store.LaneRead
	for _, lane := range lanes {
		reads = append(reads, r.laneRead(lane, nil, 3))
	}
	batches, err := r.st.Read(ctx, reads)
	if err != nil {
		return fmt.Errorf("read of %d lanes: %w", len(reads), err)
	}
	seen := map[store.Lane]bool{}
	for _, b := range batches {
		if seen[b.Lane] || b.Lane == lanesOf(r.grant)[len(lanes)] {
			return fmt.Errorf("unexpected batch of lane %d: a second one, or of a lane that was not requested", b.Lane)
		}
		seen[b.Lane] = true
		if err := checkBatch(b, r.laneRead(b.Lane, nil, 3)); err != nil {
			return err
		}
	}
	none, err := r.st.Read(ctx, nil)
	if err != nil || len(none) != 0 {
		return fmt.Errorf("a read of no lane returned %d batches and error %v", len(none), err)
	}
	return nil
}

func readNotBefore(ctx context.Context, env Env) error {
	later := label("k", "later")
	later.NotBefore = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := commit(ctx, env, label("k", "first"), later, label("k", "last")); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	lane, err := r.laneOf(ctx, "k")
	if err != nil {
		return err
	}
	b, err := r.read(ctx, lane, nil, 10)
	if err != nil {
		return err
	}
	if err := same("with one scheduled record", labels(b), []string{"first", "later", "last"}); err != nil {
		return err
	}
	for i, meta := range b.Meta {
		if scheduled := i == 1; (meta.DueIn > 0) != scheduled {
			return fmt.Errorf("record %q has DueIn %v", b.Messages[i].Payload, meta.DueIn)
		}
	}
	return nil
}

func readConcurrent(ctx context.Context, env Env) error {
	var msgs []postrider.Message
	for i := range 40 {
		msgs = append(msgs, label(fmt.Sprintf("order-%d", i%10), fmt.Sprintf("m%d", i)))
	}
	if err := commit(ctx, env, msgs...); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	lanes := lanesOf(r.grant)
	errs, got := make([]error, len(lanes)), make([][]string, len(lanes))
	var all sync.WaitGroup
	for i, lane := range lanes {
		one := &relay{st: r.st, boot: r.boot, ttl: r.ttl, epoch: map[store.Lane]int64{lane: r.epoch[lane]}}
		all.Go(func() { got[i], errs[i] = one.takeLane(ctx, lane, 3) })
	}
	heartbeat := &relay{st: r.st, boot: r.boot, ttl: r.ttl, epoch: map[store.Lane]int64{}}
	err = heartbeat.lease(ctx)
	all.Wait()
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	var union []string
	for _, part := range got {
		union = append(union, part...)
	}
	return sameSet("lanes worked on at once", union, texts(msgs))
}
