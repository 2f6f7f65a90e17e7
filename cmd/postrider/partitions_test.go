package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/internal/testserver"
)

// An outbox is converted, looked at and tended from the command line.
func TestPartitionsCommand(t *testing.T) {
	outbox := outboxOn(t, testserver.SharedPostgres(t, "18"))
	on := func(args ...string) string { return mustCLI(t, "", append(args, "--store", outbox)...) }
	look := func(args ...string) (p answer.Partitions) {
		t.Helper()
		if err := json.Unmarshal([]byte(on(append(args, "-o", "json")...)), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if out := on("partitions"); !strings.Contains(out, "migrate --partition") {
		t.Errorf("a plain outbox: %q", out)
	}
	if p := look("partitions", "tend"); p.Partitioned || p.Tended == nil || p.Tended.Made != 0 {
		t.Errorf("a plain outbox: %+v", p)
	}
	for _, want := range []string{"would do", "done", "nothing to do"} {
		args := []string{"migrate", "--partition"}
		if want == "would do" {
			args = append(args, "--dry-run")
		}
		if out := on(args...); !strings.Contains(out, want) {
			t.Errorf("%v: %q lacks %q", args, out, want)
		}
	}
	mustCLI(t, `{"topic":"t","key":"k"}`+"\n", "enqueue", "--store", outbox)
	if p := look("partitions", "tend", "--every", "1ns", "--older-than", "0"); !p.Tended.Rolled || p.Tended.Dropped != 0 || p.Tended.HeldBy != "main" ||
		len(p.Partitions) != 4 || p.Ahead != 2 || p.Alarm != "" {
		t.Errorf("tended: %+v, %+v", p, p.Tended)
	}
	for _, want := range []string{"outbox_p1", "closed", "in use", "ahead", "held by main", "ROWS (ESTIMATE)", "unknown"} {
		if out := on("partitions", "tend", "--older-than", "0"); !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	delivered(t, outbox, "--retention", "off")
	if n := ask(t, outbox, `UPDATE postrider.partition SET closed_at = closed_at - interval '8 days' WHERE number = 1 RETURNING number::text`); n != "1" {
		t.Fatalf("aged partition %s", n)
	}
	ask(t, outbox, `UPDATE postrider.progress SET settled_at = settled_at - interval '9 days' RETURNING lane::text`)
	archived := writeFile(t, "retention: 2160h\nretention_archive: "+t.TempDir()+"\n")
	for _, tc := range []struct {
		args    string
		dropped int
		heldBy  string
	}{
		{"", 0, ""}, // the words of the alert
		{"-c " + archived, 0, ""},
		{"-c " + archived + " --older-than 168h", 0, "(archive)"},
		{"--older-than 168h --dry-run", 1, ""},
	} {
		p := look(append([]string{"partitions", "tend"}, strings.Fields(tc.args)...)...)
		if p.Tended.Dropped != tc.dropped || p.Tended.HeldBy != tc.heldBy || p.Partitions[0].Number != 1 {
			t.Errorf("tend %s: %+v, the oldest is %d; want %d dropped, held by %q", tc.args, p.Tended, p.Partitions[0].Number, tc.dropped, tc.heldBy)
		}
	}
	var swept answer.Swept
	if err := json.Unmarshal([]byte(on("prune", "--older-than", "0s", "-o", "json")), &swept); err != nil || swept.Rows != 1 || swept.Dropped != 1 {
		t.Errorf("pruned: %+v, %v", swept, err)
	}
	if out := on("journal", "--act", "prune"); !strings.Contains(out, `{"partition": 1}`) {
		t.Errorf("the journal lacks the dropped partition: %s", out)
	}
	if out := on("audit", "--full"); strings.Contains(out, "differ") {
		t.Errorf("audit: %s", out)
	}
	for kind, args := range map[string][]string{
		"--partition has no effect":  {"migrate", "--partition", "--store", "sqlite:" + t.TempDir() + "/x.db"},
		"has no statements to print": {"migrate", "--partition", "--print-sql", "--store", "postgres:"},
	} {
		if got := cli(t, nil, "", args...); got.code != 2 || !strings.Contains(got.err, kind) {
			t.Errorf("%v: exit code %d, %s", args, got.code, got.err)
		}
	}
}
