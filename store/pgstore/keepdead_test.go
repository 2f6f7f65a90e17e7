package pgstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// A policy for dead letters discards those of its pipe that nobody has touched
// for so long, through the owners of their lanes, and the journal counts them.
// Without one they stay; so do those that were tried since, however old their
// messages are, and whatever is not dead.
func TestOldDeadLettersAreDiscarded(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		relay := d.storeAs(d.roles()["relay"]) // who may ask for it
		for _, p := range []struct {
			label         string
			state         store.State
			parked, tried string
		}{
			{"old", store.Dead, "100 days", "100 days"},
			{"never tried", store.Dead, "91 days", ""},
			{"tried lately", store.Dead, "100 days", "89 days"},
			{"new", store.Dead, "0", "0"},
			{"fails", store.Retry, "100 days", "100 days"},
		} {
			park := o.park("key of "+p.label, p.label, p.state)
			d.exec(`UPDATE box.parked SET created_at = now() - interval '1 year', parked_at = now() - $2::text::interval,
				last_attempt = now() - nullif($3::text, '')::interval WHERE seq = $1`, park.Seq, p.parked, p.tried)
		}
		other := d.store("other")
		mustLease(t, other, store.LeaseRequest{BootID: "x", TTL: time.Minute})
		d.exec(`INSERT INTO box.parked (pipe, lane, seq, state, captures, due_at, id, topic, key, type, payload, parked_at, created_at, version, schema_version, content_type, headers)
			SELECT 'other', lane, seq, state, captures, due_at, id, topic, key, type, payload, parked_at, created_at, version, schema_version, content_type, headers
			FROM box.parked WHERE type = 'old'`)
		discard := func(s *pgstore.Store, keep time.Duration, want int64) {
			t.Helper()
			n, err := newKeeper(t, s, &admin.KeeperOptions{KeepDead: keep}).DiscardDead(t.Context())
			if err != nil || n != want {
				t.Errorf("%d records with %s, want %d: %v", n, keep, want, err)
			}
		}
		discard(relay, 0, 0)
		discard(relay, 101*24*time.Hour, 0)
		if got := d.entries(); len(got) != 1 { // the other pipe's
			t.Errorf("in the journal: %q", got)
		}
		discard(relay, 90*24*time.Hour, 2)
		o.execute()
		if got := strings.Join(d.strings(`SELECT type FROM box.parked WHERE pipe = 'main' ORDER BY type`), ", "); got != "fails, new, tried lately" {
			t.Errorf("left are %s", got)
		}
		if n := d.count(`SELECT count(*) FROM box.parked WHERE pipe = 'other'`); n != 1 {
			t.Errorf("another pipe has %d dead letters, want its one", n)
		}
		said := d.entries()
		if len(said) < 3 || said[1] != "postrider discard  asked 2 policy: dead letters are kept for 2160h0m0s" || !strings.Contains(said[2], "done 2") {
			t.Errorf("in the journal: %q", said)
		}
		discard(relay, 90*24*time.Hour, 0)
	})
}
