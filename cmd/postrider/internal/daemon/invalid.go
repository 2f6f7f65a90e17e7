package daemon

import (
	"log/slog"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
)

// invalidEvery is how often one schema of a route is logged at most.
const invalidEvery = time.Minute

// invalidLog logs payloads that break their schema where their route warns: the first of
// a type and version at once, and then how many there were, once a minute.
func invalidLog(log *slog.Logger, now func() time.Time) open.InvalidFunc {
	type kind struct {
		rule, typ string
		version   int32
	}
	type tally struct {
		last  time.Time
		count int
	}
	const most = 1000 // types are the writers' choice
	var mu sync.Mutex
	seen := make(map[kind]*tally)
	return func(rule string, m *postrider.Message, err error) {
		k := kind{rule, m.Type, m.SchemaVersion}
		mu.Lock()
		t := seen[k]
		if t == nil {
			if len(seen) >= most {
				clear(seen)
			}
			t = &tally{}
			seen[k] = t
		}
		t.count++
		n, due := t.count, now().Sub(t.last) >= invalidEvery
		if due {
			t.last, t.count = now(), 0
		}
		mu.Unlock()
		if due {
			log.Warn("payload broke its schema", "route", rule, "type", k.typ, "schema_version", k.version, "message", m.ID, "messages", n, "error", err)
		}
	}
}
