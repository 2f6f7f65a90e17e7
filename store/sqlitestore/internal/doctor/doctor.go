// Package doctor examines an outbox and its file, and only reads.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Doctor examines one pipe of an outbox. It is safe for concurrent use.
type Doctor struct {
	*db.Outbox
	admin ops.Admin
}

// New returns the doctor of an outbox, which asks admin about its pipe. It does no I/O.
func New(o *db.Outbox, admin ops.Admin) *Doctor { return &Doctor{o, admin} }

// Examine makes the checks that make sense for a file. What concerns records is
// looked at for the pipe of the store only.
func (s *Doctor) Examine(ctx context.Context, req ops.ExamineRequest) ([]ops.Finding, error) {
	req = req.WithDefaults()
	var found []ops.Finding
	for _, c := range []struct {
		name string
		look func(context.Context, ops.ExamineRequest) ([]ops.Finding, error)
	}{
		{"schema", s.examineSchema},
		{"journal", s.examineJournal},
		{"file", s.examineFile},
		{"pipes", s.examinePipes},
		{"relays", s.examineRelays},
		{"parked", s.examineParked},
	} {
		if len(req.Only) > 0 && !slices.Contains(req.Only, c.name) {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, req.Timeout)
		f, err := c.look(limited, req)
		cancel()
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if errors.Is(err, store.ErrSchema) {
			f, err = []ops.Finding{{Severity: ops.Skipped, What: "the schema is not the one of this program: see the check \"schema\""}}, nil
		}
		var refusal *store.UnusableError
		if errors.Is(err, store.ErrNoPipe) && errors.As(err, &refusal) {
			f, err = append(f, ops.Finding{Severity: ops.Critical, What: refusal.What, Why: "what concerns the pipe cannot be examined", Fix: refusal.Fix}), nil
		}
		if err != nil {
			f = append(f, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("this check gave no answer: %v", err),
				Why: "this check was skipped", Fix: "check whether another process holds the file",
			})
		}
		for i := range f {
			f[i].Check, f[i].Fix = c.name, ops.ForPipe(f[i].Fix, s.Pipe)
		}
		found = append(found, f...)
	}
	return found, nil
}

func (s *Doctor) examineSchema(ctx context.Context, _ ops.ExamineRequest) ([]ops.Finding, error) {
	have, err := s.SchemaVersion(ctx, s.DB)
	if err != nil {
		return nil, err
	}
	if have == db.Version {
		return []ops.Finding{{What: fmt.Sprintf("the schema is at version %d, as this program needs it", have)}}, nil
	}
	f := ops.Finding{Severity: ops.Critical, Why: "no relay of this version works here", Fix: "postrider migrate", Data: map[string]any{"have": have, "want": db.Version}}
	switch {
	case have == 0:
		f.What = "the file has no outbox"
	case have < db.Version:
		f.What = fmt.Sprintf("the schema is at version %d, this program needs %d", have, db.Version)
	default:
		f.What, f.Fix = fmt.Sprintf("the schema is at version %d, newer than the %d this program knows", have, db.Version), "upgrade this program"
	}
	return []ops.Finding{f}, nil
}

// examineJournal looks how the file is written. A pool that Open did not make may
// have other settings than this one.
func (s *Doctor) examineJournal(ctx context.Context, _ ops.ExamineRequest) ([]ops.Finding, error) {
	var mode string
	var synchronous int
	if err := s.DB.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err != nil {
		return nil, err
	}
	if err := s.DB.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&synchronous); err != nil {
		return nil, err
	}
	var found []ops.Finding
	if !strings.EqualFold(mode, "wal") {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: "the journal mode is " + mode, Why: "readers and the writer wait for each other, and the relay for both",
			Fix: "turn the write-ahead log on; the file keeps it", SQL: []string{"PRAGMA journal_mode = WAL"},
		})
	}
	if synchronous < 2 {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: "synchronous is below FULL", Why: "a power cut can take back a commit whose message was delivered already",
			Fix: "open the file with sqlitestore.Open, which sets it; every pool of the application too",
		})
	}
	if len(found) == 0 {
		found = []ops.Finding{{What: "the file has a write-ahead log, and commits are on disk"}}
	}
	return found, nil
}

// logLimit is from where on a write-ahead log is worth a finding.
const logLimit = 256 << 20

// examineFile looks at the rights on the file and at its write-ahead log.
func (s *Doctor) examineFile(ctx context.Context, _ ops.ExamineRequest) ([]ops.Finding, error) {
	var path string
	if err := s.DB.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	data := map[string]any{"path": path, "bytes": info.Size(), "mode": info.Mode().String()}
	var found []ops.Finding
	if info.Mode().Perm()&0o002 != 0 {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("every user of this machine may write into the file (%s)", info.Mode()), Data: data,
			Why: "they can forge, change and remove messages", Fix: fmt.Sprintf("chmod o-rwx %s", path),
		})
	}
	log, err := os.Stat(path + "-wal")
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return found, err
	case err == nil && log.Size() >= logLimit:
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("the write-ahead log takes %d MiB", log.Size()>>20), Data: data,
			Why: "a transaction that reads for long keeps it from being folded back: every read looks through it",
			Fix: "end that transaction, then", SQL: []string{"PRAGMA wal_checkpoint(TRUNCATE)"},
		})
	}
	if len(found) == 0 {
		found = []ops.Finding{{What: fmt.Sprintf("the file takes %d MiB", info.Size()>>20), Data: data}}
	}
	return found, nil
}

// examineRelays looks whether any lives, and how far it is behind.
func (s *Doctor) examineRelays(ctx context.Context, req ops.ExamineRequest) ([]ops.Finding, error) {
	st, err := s.admin.Status(ctx)
	if errors.Is(err, store.ErrNotFound) {
		return []ops.Finding{{Severity: ops.Critical, What: "no relay has ever worked here", Why: "messages wait", Fix: "postrider relay"}}, nil
	}
	if err != nil {
		return nil, err
	}
	alive := 0
	var found []ops.Finding
	for i := range st.Instances {
		if one := &st.Instances[i]; one.Alive {
			alive++
			found = append(found, one.Findings()...)
		}
	}
	data := map[string]any{"alive": alive, "pending": st.Pending, "lag_seconds": st.Lag.Seconds(), "lag_is_upper_bound": st.LagCapped}
	what := fmt.Sprintf("%s, %s, the oldest for %s%s", plural.Of(alive, "relay lives", "relays live"),
		plural.Of(st.Pending, "message is pending", "messages are pending"), st.AtMost(), st.Lag.Round(time.Second))
	switch {
	case alive == 0 && st.Pending == 0:
		return []ops.Finding{{What: "no relay lives, and no message waits for one", Data: data}}, nil
	case alive == 0:
		return []ops.Finding{{Severity: ops.Critical, What: what, Why: "messages are safe in the outbox, and wait", Fix: "postrider relay", Data: data}}, nil
	case st.Lag >= req.Limits.Lag:
		found = append(found, ops.Finding{Severity: ops.Critical, What: what, Why: "consumers work with what was true then", Fix: "see what the lanes wait for: postrider status --lanes", Data: data})
	case len(found) == 0:
		found = []ops.Finding{{What: what, Data: data}}
	}
	return found, nil
}

// examineParked groups dead letters by code, and counts the keys that they block.
func (s *Doctor) examineParked(ctx context.Context, req ops.ExamineRequest) ([]ops.Finding, error) {
	return ops.ParkedFindings(ctx, s.admin.Parked, req.Limits)
}
