package admin_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func archived() []ops.ArchivedRow {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return []ops.ArchivedRow{
		{Lane: 3, Seq: 17, Message: postrider.Message{ID: "a", Topic: "t", Key: "<k>", Payload: []byte{0, 255}, Headers: map[string]string{"h": "v"}, Time: at}},
		{Lane: 3, Seq: 9007199254740993, Message: postrider.Message{ID: "b", Topic: "t", Payload: []byte("x"), Time: at}},
	}
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range found {
		names = append(names, f.Name())
	}
	return names
}

// An archive is complete when it has its name, carries a checksum that fits, and
// is made once however often the same rows come.
func TestArchiveTo(t *testing.T) {
	dir := t.TempDir()
	keep := admin.ArchiveTo(dir)
	for range 2 {
		if err := keep(t.Context(), archived()); err != nil {
			t.Fatal(err)
		}
	}
	names := files(t, dir)
	if len(names) != 1 || names[0] != "outbox-0003-0000000000000000017-0009007199254740993.jsonl" {
		t.Fatalf("files %q", names)
	}
	data, err := os.ReadFile(filepath.Join(dir, names[0]))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	if len(lines) != 4 || !bytes.Contains(lines[0], []byte(`"payload_base64":"AP8="`)) || !bytes.Contains(lines[1], []byte(`"seq":"9007199254740993"`)) {
		t.Fatalf("archive:\n%s", data)
	}
	var end struct {
		Manifest struct {
			Rows   int    `json:"rows"`
			SHA256 string `json:"sha256"`
		} `json:"manifest"`
	}
	if err := json.Unmarshal(lines[2], &end); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(bytes.Join(lines[:2], nil))
	if end.Manifest.Rows != 2 || end.Manifest.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("manifest %s", lines[2])
	}

	// A straggler between the same numbers makes another file: the first one may
	// be all that is left of its rows.
	more := archived()
	more[0].Message.Payload = []byte("other")
	if err := keep(t.Context(), more); err != nil {
		t.Fatal(err)
	}
	if names := files(t, dir); len(names) != 2 || !strings.HasSuffix(names[0], "993.1.jsonl") {
		t.Errorf("files %q", names)
	}
	if again, err := os.ReadFile(filepath.Join(dir, "outbox-0003-0000000000000000017-0009007199254740993.jsonl")); err != nil || !bytes.Equal(again, data) {
		t.Errorf("an archive was overwritten: %v", err)
	}
	if err := admin.ArchiveTo(filepath.Join(dir, "missing"))(t.Context(), archived()); err == nil {
		t.Error("a folder that is not there was no error")
	}
}

func TestArchiveBy(t *testing.T) {
	out := filepath.Join(t.TempDir(), "lines")
	if err := admin.ArchiveBy("cat > "+out, &bytes.Buffer{})(t.Context(), archived()); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(out); err != nil || bytes.Count(data, []byte("\n")) != 3 {
		t.Errorf("the command got %q, %v", data, err)
	}
	var errOut bytes.Buffer
	err := admin.ArchiveBy("cat > /dev/null; echo full >&2; exit 3", &errOut)(t.Context(), archived())
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || errOut.String() != "full\n" {
		t.Errorf("a command that failed: %v, %q", err, errOut.String())
	}
}

// retainer is a store with rows to remove.
type retainer struct {
	rows       int
	held       ops.Held
	other      string
	left       bool
	looks      int
	difference int64
	requests   []ops.PruneRequest
}

func (r *retainer) Prune(_ context.Context, req ops.PruneRequest) (ops.Pruned, error) {
	if req.Leave {
		r.left = true
		return ops.Pruned{}, nil
	}
	r.requests = append(r.requests, req)
	if r.other != "" {
		return ops.Pruned{Runner: r.other}, nil
	}
	n := min(r.rows, req.Limit)
	r.rows -= n
	p := ops.Pruned{Rows: int64(n), Lanes: map[store.Lane]int64{0: int64(n)}, After: map[store.Lane]int64{0: int64(len(r.requests))}}
	if r.rows > 0 {
		p.Left = []store.Lane{0}
	} else {
		p.Held = r.held
	}
	return p, nil
}

func (r *retainer) Tidy(context.Context, ops.TidyRequest) (ops.Tidied, error) { return nil, nil }

func (r *retainer) Audit(context.Context, ops.AuditRequest) (ops.Books, error) {
	r.looks++
	return ops.Books{At: time.Now(), Lanes: []ops.LaneBook{{Difference: r.difference}}}, nil
}

// A sweep continues until nothing is left, from where the one before ended, and
// not where somebody else sweeps.
func TestKeeperSweeps(t *testing.T) {
	r := &retainer{rows: 2500, held: ops.Held{Pipe: "slow", Rows: 7, Over: true}}
	k := newKeeper(t, r, &admin.KeeperOptions{OlderThan: time.Hour, Rate: 1_000_000})
	done, err := k.Sweep(t.Context())
	if err != nil || done.Rows != 2500 || done.Lanes[0] != 2500 || done.Held.Pipe != "slow" || len(r.requests) != 3 || r.looks != 1 {
		t.Fatalf("swept %+v in %d batches, %v", done, len(r.requests), err)
	}
	if s := k.Stats(); s.Removed != 2500 || !s.Runner || !s.Held.Over {
		t.Errorf("stats %+v", s)
	}
	if _, err := k.Sweep(t.Context()); err != nil || r.requests[3].After[0] != 3 || r.requests[3].Lanes != nil {
		t.Errorf("the next sweep begins at %v of lanes %v, %v", r.requests[3].After, r.requests[3].Lanes, err)
	}
	r.other = "somebody"
	if done, err = k.Sweep(t.Context()); err != nil || done.Runner != "somebody" || k.Stats().Runner {
		t.Errorf("swept %+v beside another runner, %v", done, err)
	}
}
