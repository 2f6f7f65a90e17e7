package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

func stragglerCases() []Case {
	return []Case{
		{
			Name: "straggler/late-commit", Needs: NeedsBackdatedWriters, Run: stragglerLateCommit,
			Promise: "a record that commits after higher numbers were settled is still delivered",
		},
		{
			Name: "straggler/late-rollback", Needs: NeedsBackdatedWriters, Run: stragglerLateRollback,
			Promise: "a late rollback leaves no record and holds up none",
		},
		{
			Name: "straggler/before-later", Needs: NeedsBackdatedWriters, Run: stragglerBeforeLater,
			Promise: "a late record precedes the records of its key that were enqueued after its commit",
		},
		{
			Name: "straggler/pages", Needs: NeedsBackdatedWriters, Run: stragglerPages,
			Promise: "a large transaction that commits late is read in pages within the limits, complete and in order",
		},
		{
			Name: "straggler/survives-take-over", Needs: NeedsBackdatedWriters, Run: stragglerSurvivesTakeOver,
			Promise: "the next owner reads a transaction that was open when the cursor passed its numbers",
		},
		{
			Name: "straggler/unsettled", Needs: NeedsBackdatedWriters, Run: stragglerUnsettled,
			Promise: "late records that were read and not settled are read again by the next owner",
		},
		{
			Name: "straggler/history", Needs: NeedsBackdatedWriters, Run: stragglerHistory,
			Promise: "in a random history of overlapping writers every committed record is settled once, in causal order per key, and no rolled back one",
		},
	}
}

// overtaken leaves a transaction with msgs open whose numbers the cursor has passed:
// a later record of the same lane was committed and settled.
func overtaken(ctx context.Context, env Env, msgs ...postrider.Message) (*relay, Tx, error) {
	r, err := solo(ctx, env, "a")
	if err != nil {
		return nil, nil, err
	}
	late, err := begin(ctx, env, msgs...)
	if err != nil {
		return nil, nil, err
	}
	if err := commit(ctx, env, label(msgs[0].Key, "overtaker")); err != nil {
		return nil, nil, joinRollback(ctx, late, err)
	}
	got, err := r.take(ctx, 10)
	if err == nil {
		err = same("while the first transaction is open", got, []string{"overtaker"})
	}
	if err != nil {
		return nil, nil, joinRollback(ctx, late, err)
	}
	return r, late, nil
}

func stragglerLateCommit(ctx context.Context, env Env) error {
	r, late, err := overtaken(ctx, env, series("k", "late", 3)...)
	if err != nil {
		return err
	}
	if err := late.Commit(ctx); err != nil {
		return fmt.Errorf("late commit: %w", err)
	}
	for _, want := range [][]string{texts(series("k", "late", 3)), nil} {
		got, err := r.take(ctx, 10)
		if err != nil {
			return err
		}
		if err := same("after the late commit", got, want); err != nil {
			return err
		}
	}
	return nil
}

func stragglerLateRollback(ctx context.Context, env Env) error {
	r, late, err := overtaken(ctx, env, series("k", "late", 3)...)
	if err != nil {
		return err
	}
	if err := late.Rollback(ctx); err != nil {
		return fmt.Errorf("late rollback: %w", err)
	}
	if err := commit(ctx, env, label("k", "next")); err != nil {
		return err
	}
	got, err := r.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("after the late rollback", got, []string{"next"})
}

func stragglerBeforeLater(ctx context.Context, env Env) error {
	r, late, err := overtaken(ctx, env, series("k", "late", 3)...)
	if err != nil {
		return err
	}
	if err := late.Commit(ctx); err != nil {
		return fmt.Errorf("late commit: %w", err)
	}
	if err := commit(ctx, env, label("k", "after")); err != nil {
		return err
	}
	got, err := r.take(ctx, 2)
	if err != nil {
		return err
	}
	return same("late records and a later one", got, append(texts(series("k", "late", 3)), "after"))
}

func stragglerPages(ctx context.Context, env Env) error {
	r, late, err := overtaken(ctx, env, series("k", "late", 57)...)
	if err != nil {
		return err
	}
	if err := late.Commit(ctx); err != nil {
		return fmt.Errorf("late commit: %w", err)
	}
	if err := commit(ctx, env, series("k", "after", 8)...); err != nil {
		return err
	}
	lane, err := r.laneOf(ctx, "k")
	if err != nil {
		return err
	}
	var got []string
	var after store.Position
	for i := range rounds { // read ahead, and settle only every third batch
		b, err := r.read(ctx, lane, after, 10)
		if err != nil {
			return err
		}
		if len(b.Messages) == 0 && !b.More {
			break
		}
		got, after = append(got, labels(b)...), b.Position
		if i%3 == 2 {
			if err := r.settle(ctx, store.Settlement{Lane: lane, Position: after}); err != nil {
				return err
			}
		}
	}
	return same("57 late records and 8 later ones", got, append(texts(series("k", "late", 57)), texts(series("k", "after", 8))...))
}

func stragglerSurvivesTakeOver(ctx context.Context, env Env) error {
	r, late, err := overtaken(ctx, env, series("k", "late", 3)...)
	if err != nil {
		return err
	}
	if err := r.leave(ctx); err != nil {
		return joinRollback(ctx, late, err)
	}
	next, err := solo(ctx, env, "b")
	if err != nil {
		return joinRollback(ctx, late, err)
	}
	if err := late.Commit(ctx); err != nil {
		return fmt.Errorf("late commit: %w", err)
	}
	got, err := next.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("read by the next owner", got, texts(series("k", "late", 3)))
}

func stragglerUnsettled(ctx context.Context, env Env) error {
	r, late, err := overtaken(ctx, env, series("k", "late", 9)...)
	if err != nil {
		return err
	}
	if err := late.Commit(ctx); err != nil {
		return fmt.Errorf("late commit: %w", err)
	}
	lane, err := r.laneOf(ctx, "k")
	if err != nil {
		return err
	}
	first, err := r.read(ctx, lane, nil, 4)
	if err != nil {
		return err
	}
	if _, err := r.read(ctx, lane, first.Position, 4); err != nil {
		return err
	}
	if err := r.settle(ctx, store.Settlement{Lane: lane, Position: first.Position, Delivered: len(first.Messages)}); err != nil {
		return err
	}
	next, err := r.next(ctx, env)
	if err != nil {
		return err
	}
	rest, err := next.take(ctx, 4)
	if err != nil {
		return err
	}
	return same("settled by the first and read by the second owner", append(labels(first), rest...), texts(series("k", "late", 9)))
}

// history is a random run of overlapping writers beside one reader.
type history struct {
	env       Env
	rnd       *rand.Rand
	relay     *relay
	next      int
	open      []*openTx
	committed []string
	// before has, for each record, the records of its key that were committed, or
	// written by the same transaction, before its enqueue.
	before map[string][]string
	key    map[string]string
	done   map[string]bool
}

type openTx struct {
	tx     Tx
	labels []string
}

func stragglerHistory(ctx context.Context, env Env) error {
	for seed := range uint64(3) {
		h := &history{
			env: env, rnd: rand.New(rand.NewPCG(seed, 1)),
			before: map[string][]string{}, key: map[string]string{}, done: map[string]bool{},
		}
		if err := h.run(ctx, fmt.Sprintf("seed %d", seed)); err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	return nil
}

func (h *history) run(ctx context.Context, boot string) error {
	var err error
	if h.relay, err = solo(ctx, h.env, boot); err != nil {
		return err
	}
	for step := 0; step < 120 && err == nil; step++ {
		switch roll := h.rnd.IntN(10); {
		case roll < 3 && len(h.open) < 4:
			err = h.begin(ctx)
		case roll < 5 && len(h.open) > 0:
			err = h.write(ctx, h.open[h.rnd.IntN(len(h.open))])
		case roll < 7 && len(h.open) > 0:
			err = h.end(ctx, h.rnd.IntN(len(h.open)))
		default:
			err = h.read(ctx)
		}
	}
	for len(h.open) > 0 {
		if eerr := h.end(ctx, 0); err == nil {
			err = eerr
		}
	}
	if err != nil {
		return err
	}
	for range len(h.committed) + 2 { // until reads of all lanes return nothing
		before := len(h.done)
		if err := h.read(ctx); err != nil {
			return err
		}
		if len(h.done) == before && before >= len(h.committed) {
			break
		}
	}
	for _, text := range h.committed {
		if !h.done[text] {
			return fmt.Errorf("record %s was committed but never read", text)
		}
	}
	return h.relay.leave(ctx)
}

func (h *history) begin(ctx context.Context) error {
	tx, err := h.env.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	o := &openTx{tx: tx}
	h.open = append(h.open, o)
	return h.write(ctx, o)
}

func (h *history) write(ctx context.Context, o *openTx) error {
	key := fmt.Sprintf("key %d", h.rnd.IntN(3))
	for range 1 + h.rnd.IntN(4) {
		h.next++
		text := fmt.Sprintf("%s#%d", h.relay.boot, h.next)
		h.key[text] = key
		for _, earlier := range slices.Concat(h.committed, o.labels) {
			if h.key[earlier] == key {
				h.before[text] = append(h.before[text], earlier)
			}
		}
		o.labels = append(o.labels, text)
		if err := o.tx.Enqueue(ctx, label(key, text)); err != nil {
			return fmt.Errorf("enqueue: %w", err)
		}
	}
	return nil
}

func (h *history) end(ctx context.Context, i int) error {
	o := h.open[i]
	h.open = append(h.open[:i:i], h.open[i+1:]...)
	if h.rnd.IntN(4) == 0 {
		return o.tx.Rollback(ctx)
	}
	h.committed = append(h.committed, o.labels...)
	return o.tx.Commit(ctx)
}

// read settles one batch of every lane and checks each of its records.
func (h *history) read(ctx context.Context) error {
	committed := map[string]bool{}
	for _, text := range h.committed {
		committed[text] = true
	}
	for _, lane := range lanesOf(h.relay.grant) {
		b, err := h.relay.read(ctx, lane, nil, 1+h.rnd.IntN(4))
		if err != nil {
			return err
		}
		for _, text := range labels(b) {
			switch {
			case !committed[text]:
				return fmt.Errorf("record %s was read without a commit", text)
			case h.done[text]:
				return fmt.Errorf("record %s was read again after it was settled", text)
			}
			for _, earlier := range h.before[text] {
				if !h.done[earlier] {
					return fmt.Errorf("record %s was read before %s of its key, which was committed before its enqueue", text, earlier)
				}
			}
			h.done[text] = true
		}
		if b.Position == nil {
			continue
		}
		if err := h.relay.settle(ctx, store.Settlement{Lane: lane, Position: b.Position, Delivered: len(b.Messages)}); err != nil {
			return err
		}
	}
	return nil
}
