package inboxtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func historyCases() []Case {
	return []Case{
		{"history/contiguous", "whatever comes in whatever order, each version is applied once and in turn", func(ctx context.Context, env *Env) error {
			return History(ctx, env, inbox.Contiguous, rand.Uint64())
		}},
		{"history/latest", "whatever comes in whatever order, versions rise and the last one is applied", func(ctx context.Context, env *Env) error {
			return History(ctx, env, inbox.Latest, rand.Uint64())
		}},
	}
}

// History delivers the versions of a few keys as seed says, doubled, in any
// order, with handlers that fail and gaps that are announced or given up, and
// compares each answer and what is left with those of a model. Its error names
// the seed. It may be called again on the same Env.
func History(ctx context.Context, env *Env, order inbox.Order, seed uint64) error {
	h := &history{
		env: env, in: env.inbox(fmt.Sprintf("history %x", seed)), order: order, rnd: rand.New(rand.NewPCG(seed, 0)),
		claimed: make(map[string]bool), keys: make(map[string]*modelKey),
	}
	if err := h.run(ctx, seed); err != nil {
		return fmt.Errorf("seed %d, %s order, step %d: %w", seed, order, h.step, err)
	}
	return nil
}

const (
	historyKeys     = 3
	historyVersions = 8
)

// history is a run of a database and its model side by side.
type history struct {
	env   *Env
	in    *inboxwork.Inbox
	order inbox.Order
	rnd   *rand.Rand
	step  int

	claimed map[string]bool
	keys    map[string]*modelKey
	ids     int
}

// modelKey is what the inbox should know of a key.
type modelKey struct {
	mark    int64
	stash   []modelStashed
	applied []string
}

type modelStashed struct{ version, needs int64 }

var errOnPurpose = errors.New("failed on purpose")

func (h *history) run(ctx context.Context, seed uint64) error {
	var all []postrider.Message
	for k := range historyKeys {
		key := fmt.Sprintf("%x-%d", seed, k)
		h.keys[key] = new(modelKey)
		for v := int64(1); v <= historyVersions; v++ {
			all = append(all, h.version(key, v))
		}
	}
	deliveries := slices.Clone(all)
	for _, m := range all {
		if h.rnd.IntN(3) == 0 {
			deliveries = append(deliveries, m)
		}
		if h.rnd.IntN(6) == 0 { // the same version under another id
			h.ids++
			m.ID = fmt.Sprintf("%s again %d", m.ID, h.ids)
			deliveries = append(deliveries, m)
		}
	}
	h.rnd.Shuffle(len(deliveries), func(i, j int) { deliveries[i], deliveries[j] = deliveries[j], deliveries[i] })
	for _, m := range append(deliveries, all...) { // in the end all comes once more, in its order
		h.step++
		if err := h.deliver(ctx, m); err != nil {
			return err
		}
	}
	return h.end(ctx)
}

// version is one of a key, which announces sometimes that the one before it is missing.
func (h *history) version(key string, v int64) postrider.Message {
	m := message(key, v)
	if h.order == inbox.Contiguous && v > 1 && h.rnd.IntN(12) == 0 {
		m.Headers = map[string]string{envelope.Gap: fmt.Sprint(v - 1)}
	}
	return m
}

// deliver takes one message, sometimes after a try that fails, and does what may
// follow: what has waited is applied, a gap is given up.
func (h *history) deliver(ctx context.Context, m postrider.Message) error {
	if h.rnd.IntN(4) == 0 {
		err := h.env.in(ctx, func(tx inbox.Conn) error {
			_, err := h.env.takeIn(ctx, tx, h.in, h.order, m)
			return cmp.Or(err, errOnPurpose)
		})
		if !errors.Is(err, errOnPurpose) {
			return err
		}
	}
	r, err := h.env.take(ctx, h.in, h.order, m)
	if err != nil {
		return err
	}
	if want := h.model(&m); r != want {
		return fmt.Errorf("version %d of key %s at mark %d: ruling %d, want %d", m.Version, m.Key, h.keys[m.Key].mark, r, want)
	}
	if h.order != inbox.Contiguous {
		return nil
	}
	if h.rnd.IntN(3) == 0 {
		return h.catchUp(ctx, m.Key, 1+h.rnd.IntN(4))
	}
	if h.rnd.IntN(15) == 0 {
		return h.giveUp(ctx)
	}
	return nil
}

// model is what should become of m.
func (h *history) model(m *postrider.Message) inboxwork.Ruling {
	k := h.keys[m.Key]
	if h.claimed[m.ID] {
		return inboxwork.Gone
	}
	h.claimed[m.ID] = true
	needs := int64(0)
	if h.order == inbox.Contiguous {
		if needs = m.Version - 1; m.Headers[envelope.Gap] != "" {
			needs--
		}
	}
	switch {
	case m.Version <= k.mark:
		return inboxwork.Stale
	case needs > k.mark:
		k.stash = append(k.stash, modelStashed{m.Version, needs})
		return inboxwork.Early
	}
	k.apply(m.Key, m.Version)
	return inboxwork.Apply
}

func (k *modelKey) apply(key string, version int64) {
	k.mark = version
	k.applied = append(k.applied, fmt.Sprintf("%s %d", key, version))
}

// catchUp is Unstash and what it should do.
func (h *history) catchUp(ctx context.Context, key string, limit int) error {
	k, applied := h.keys[key], 0
	slices.SortFunc(k.stash, func(a, b modelStashed) int { return cmp.Compare(a.version, b.version) })
	for applied < limit {
		i := slices.IndexFunc(k.stash, func(s modelStashed) bool { return s.version > k.mark && s.needs <= k.mark })
		if i < 0 {
			break
		}
		k.apply(key, k.stash[i].version)
		applied++
	}
	before := len(k.stash)
	k.stash = slices.DeleteFunc(k.stash, func(s modelStashed) bool { return s.version <= k.mark })
	stale := before - len(k.stash) - applied
	n, s, err := h.env.unstash(ctx, h.in, key, limit)
	if err == nil && (n != applied || s != stale) {
		err = fmt.Errorf("key %s catches up with %d, %d stale; want %d and %d", key, n, s, applied, stale)
	}
	return err
}

// giveUp gives up the first gap there is.
func (h *history) giveUp(ctx context.Context) error {
	g, err := h.env.gap(ctx, h.in, nil)
	if err != nil || g == nil {
		return err
	}
	k := h.keys[g.Key]
	least := slices.MinFunc(k.stash, func(a, b modelStashed) int { return cmp.Compare(a.needs, b.needs) })
	if g.Mark != k.mark || g.Needs != least.needs || int(g.Stashed) != len(k.stash) {
		return fmt.Errorf("gap %+v, want mark %d, needs %d, %d stashed", *g, k.mark, least.needs, len(k.stash))
	}
	return h.env.in(ctx, func(tx inbox.Conn) error {
		skipped, err := h.in.SkipGap(ctx, tx, *g)
		if err == nil && !skipped {
			err = fmt.Errorf("gap %+v was not given up", *g)
		}
		k.mark = g.Needs
		return err
	})
}

// end lets all keys catch up, and compares what is there.
func (h *history) end(ctx context.Context) error {
	got, err := h.env.Acts(ctx)
	if err != nil {
		return err
	}
	for key, k := range h.keys {
		if h.order == inbox.Contiguous {
			if err := h.catchUp(ctx, key, len(k.stash)+1); err != nil {
				return err
			}
			if got, err = h.env.Acts(ctx); err != nil {
				return err
			}
		}
		if err := h.env.mark(ctx, h.in, key, historyVersions); err != nil {
			return err
		}
		var mine []string
		for _, a := range got {
			if len(a) > len(key) && a[:len(key)+1] == key+" " {
				mine = append(mine, a)
			}
		}
		if !slices.Equal(mine, k.applied) {
			return fmt.Errorf("the effects of key %s are %q, want %q", key, mine, k.applied)
		}
	}
	if g, err := h.env.gap(ctx, h.in, nil); err != nil || g != nil {
		return fmt.Errorf("a gap is left: %+v, %v", g, err)
	}
	return nil
}
