package console

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// window is how many parked records of a state a page looks at. Pages say when there are more.
const window = 2000

// keysSeen are the blocked keys of a pipe, ordered by when they were blocked.
type keysSeen struct {
	Keys   []blockedKey
	Window bool // there are more than the window shows
	At     time.Time
	Err    error        // of the last look, whose keys are older then
	ErrAt  time.Time    // when it failed
	Shown  []blockedKey // those that the page lists
	Hidden int          // how many it does not
}

// Stuck are the keys that move only when a person acts.
func (k *keysSeen) Stuck() (n int) {
	for i := range k.Keys {
		if k.Keys[i].Stuck() {
			n++
		}
	}
	return n
}

func (k *keysSeen) figure() figure {
	return figure{int64(k.Stuck()), k.Window, !k.At.IsZero()}
}

func (k *keysSeen) text() string {
	if f := k.figure(); f.N != 1 || f.Bound {
		return fig(f) + " keys are"
	}
	return "1 key is"
}

// blockedKey is a key that does not move, and why.
type blockedKey struct {
	Key     string
	Lane    store.Lane
	Head    *ops.ParkedRecord // nil: a person has paused it
	Since   time.Time
	Waiting int
	Held    bool // by a person
}

// Stuck reports whether a person must act.
func (k *blockedKey) Stuck() bool { return k.Held || k.Head != nil && k.Head.State == store.Dead }

// keysEvery is how old the list of blocked keys may be.
const keysEvery = 3 * time.Second

// blocked lists the keys that a dead letter or a retry holds, or a person has paused.
func (p *place) blocked(ctx context.Context) (keysSeen, error) {
	p.keysMu.Lock()
	defer p.keysMu.Unlock()
	if time.Since(p.keys.At) < keysEvery {
		return p.keys, nil
	}
	// Pages that wait for each other must not ask one after another while the database is away.
	if time.Since(p.keys.ErrAt) < keysEvery {
		return p.keys, p.keys.Err
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookFor)
	defer cancel()
	seen := keysSeen{At: time.Now()}
	at := map[string]int{}
	for _, state := range []store.State{store.Dead, store.Retry, store.Waiting} {
		all, err := p.office.Admin.Parked(limited, ops.ParkedQuery{State: state, Bare: true, Limit: window})
		if err != nil {
			p.keys.Err, p.keys.ErrAt = err, time.Now()
			return p.keys, err
		}
		seen.Window = seen.Window || len(all) == window
		for i := range all {
			seen.count(at, &all[i])
		}
	}
	for _, h := range p.lookedAt().Holds {
		if h.Key == "" {
			continue
		}
		i, ok := at[h.Key]
		if !ok {
			i = len(seen.Keys)
			at[h.Key] = i
			seen.Keys = append(seen.Keys, blockedKey{Key: h.Key, Lane: h.Lane, Since: h.Since})
		}
		seen.Keys[i].Held = true
	}
	slices.SortStableFunc(seen.Keys, func(a, b blockedKey) int { return a.Since.Compare(b.Since) })
	p.keys = seen
	return seen, nil
}

// lookedAt is the status that was seen last.
func (p *place) lookedAt() ops.Status {
	p.looking.Lock()
	defer p.looking.Unlock()
	return p.seen.Status
}

// count adds a record to its key. Records that hold keys come before those that wait.
func (k *keysSeen) count(at map[string]int, r *ops.ParkedRecord) {
	key := r.Message.Key
	i, ok := at[key]
	switch {
	case key == "":
	case r.State == store.Waiting && ok:
		k.Keys[i].Waiting++
	case !r.Captures:
	case !ok:
		at[key] = len(k.Keys)
		k.Keys = append(k.Keys, blockedKey{Key: key, Lane: r.Lane, Head: r, Since: cmp.Or(r.FirstFailed, r.LastAttempt, r.Message.Time)})
	case k.Keys[i].Head == nil || r.Seq < k.Keys[i].Head.Seq:
		k.Keys[i].Waiting++
		k.Keys[i].Head = r
	default:
		k.Keys[i].Waiting++
	}
}

// keys shows the blocked keys.
func (q *request) keys() error {
	p := q.frame("keys", "Blocked keys")
	seen, err := q.place.blocked(q.ctx)
	if err != nil {
		return err
	}
	hidden := max(len(seen.Keys)-shownRecords, 0)
	seen.Hidden, seen.Shown = hidden, seen.Keys[:len(seen.Keys)-hidden]
	p.Body, p.Command, p.Reload = &seen, q.place.command("dead", "list"), 15
	return q.show("keys", http.StatusOK, p)
}

// keyBody is how one key is.
type keyBody struct {
	Life     ops.KeyLife
	State    string
	KeyHeld  bool // by a person, as the lane
	LaneHeld bool
	Do       string
	Total    int64
}

// key shows how one key is.
func (q *request) key() error {
	key := q.r.URL.Query().Get("key")
	if key == "" {
		return q.redirect("keys")
	}
	if err := q.place.office.Need(ops.CanFind); err != nil {
		return err
	}
	ctx, cancel := q.limited(lookFor)
	defer cancel()
	life, err := q.place.office.Finder.Key(ctx, key)
	if err != nil {
		return err
	}
	p := q.frame("keys", "Key")
	body := keyBody{Life: life, State: "free"}
	for _, h := range life.Holds {
		body.KeyHeld, body.LaneHeld = body.KeyHeld || h.Key != "", body.LaneHeld || h.Key == ""
	}
	for _, n := range life.Parked {
		body.Total += n
	}
	switch {
	case body.KeyHeld || body.LaneHeld:
		body.State, body.Do = "paused", "a person resumes it"
	case life.Head != nil && life.Head.State == store.Dead:
		body.State, body.Do = "blocked", "a person retries, skips or discards the dead letter that holds it"
	case life.Head != nil:
		body.State, body.Do = "retrying", "nobody: the relay tries the message that holds it again by itself"
	}
	p.Body, p.Command = body, q.place.command("key", "show", key)
	return q.show("key", http.StatusOK, p)
}

var uuidText = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// find sends what was typed into the search to the page of that message, number or key.
func (q *request) find() error {
	text := strings.TrimSpace(q.r.URL.Query().Get("q"))
	switch {
	case text == "":
		return q.redirect("")
	case uuidText.MatchString(text):
		return q.redirect("message?id=" + text)
	}
	if seq, ok := strings.CutPrefix(text, "#"); ok {
		if _, err := strconv.ParseInt(seq, 10, 64); err == nil {
			return q.redirect("message?seq=" + seq)
		}
	}
	return q.redirect("key?key=" + url.QueryEscape(text))
}
