package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
)

// The doctor's answer as text and as JSON, and its exit status.
func TestDoctor(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	good := outboxOn(t, pg)
	if got := cli(t, nil, "", "doctor", "--only", "relays,lanes", "--store", good); got.code != exit.OK {
		t.Errorf("no message waits, and a relay is missing: exit code %d\n%s", got.code, got.out)
	}
	mustCLI(t, `{"topic":"orders","key":"k","payload_text":"x"}`+"\n", "enqueue", "--store", good)
	for _, tc := range []struct {
		name string
		code exit.Code
		args []string
		want string
	}{
		{"critical", 6, nil, "critical"},
		{"never", 0, []string{"--fail-on", "never"}, ""},
		{"nonsense", 2, []string{"--fail-on", "ok"}, "use warning, critical or never"},
		{"no such role", 2, []string{"--role", "stranger"}, `there is no role "stranger"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := cli(t, nil, "", append([]string{"doctor", "--store", good}, tc.args...)...)
			if got.code != tc.code || !strings.Contains(got.err, tc.want) {
				t.Errorf("exit code %d, want %d; stderr %q", got.code, tc.code, got.err)
			}
			if tc.code == 2 {
				return
			}
			for _, word := range []string{"CRITICAL  relays", "has no heartbeat from a relay", "postrider relay", "in order"} {
				if !strings.Contains(got.out, word) {
					t.Errorf("stdout lacks %q:\n%s", word, got.out)
				}
			}
			if strings.Contains(got.out, "OK  ") {
				t.Errorf("what is in order is printed without --all:\n%s", got.out)
			}
		})
	}
	got := cli(t, nil, "", "doctor", "--store", good, "-o", "json", "--fail-on", "warning")
	var d admin.Diagnosis
	if err := json.Unmarshal([]byte(got.out), &d); err != nil || got.code != 6 {
		t.Fatalf("exit code %d, %v: %s", got.code, err, got.out)
	}
	if d.Worst != ops.Critical || d.Critical == 0 || d.Critical+d.Warning+d.OK != len(d.Findings) || d.Findings[0].Severity != ops.Critical {
		t.Errorf("%+v", d)
	}
	if got := cli(t, nil, "", "doctor", "--store", pg.Database(t)); got.code != 6 || !strings.Contains(got.out, "has no outbox") {
		t.Errorf("without an outbox: exit code %d\n%s%s", got.code, got.out, got.err)
	}
	if got := cli(t, nil, "", "doctor", "--store", "memory:"); got.code != 2 || !strings.Contains(got.err, "not supported by this store (memory)") {
		t.Errorf("a store in memory: exit code %d, %s", got.code, got.err)
	}
	if got := cli(t, nil, "", "doctor", "--store", "postgres://u@127.0.0.1:1/db"); got.code != 4 {
		t.Errorf("nobody answers: exit code %d, %s", got.code, got.err)
	}
}

// A check that exists and is not made here gives its reason; only an unknown name is
// wrong usage.
func TestDoctorSaysWhyACheckIsSkipped(t *testing.T) {
	pg := testserver.SharedPostgres(t, "18")
	store, empty := outboxOn(t, pg), pg.Database(t)
	for _, c := range []struct {
		args []string
		code exit.Code
		want string
	}{
		{[]string{"--only", "consumer-dead", "--store", store}, exit.OK, "no consumer keeps an inbox in this database"},
		{[]string{"--only", "broker", "--store", store}, exit.OK, "SKIPPED  broker  no broker is given: name one with --broker"},
		{[]string{"--only", "broker", "-o", "json", "--store", store}, exit.OK, `"severity":"skipped"`},
		{[]string{"--only", "lag,consumer-gaps", "--store", store}, exit.OK, "1 in order, 1 skipped"},
		{[]string{"--only", "lag", "--store", store, "--consumer", "all"}, exit.OK, "this store lacks it, or --consumer leaves the outbox out"},
		{[]string{"--only", "lag", "--store", empty}, exit.Findings, "has no outbox"},
		{[]string{"--only", "consumers", "--store", store}, exit.Usage, `unknown check "consumers": use schema, `},
	} {
		got := cli(t, nil, "", append([]string{"doctor"}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.out+got.err, c.want) {
			t.Errorf("%q: exit code %d, want %d and %q\n%s%s", c.args, got.code, c.code, c.want, got.out, got.err)
		}
	}
}

// With a broker given, one that is down and a topic that is missing are found.
func TestDoctorAsksTheBroker(t *testing.T) {
	url := testserver.SharedNATS(t).URL
	there := newStream(t, url, 1000)
	store := outboxOn(t, testserver.SharedPostgres(t, "18"))
	doctor := func(at string, code exit.Code, want string) {
		t.Helper()
		got := cli(t, nil, "", "doctor", "--only", "broker", "--all", "--store", store, "--broker", at)
		if got.code != code || !strings.Contains(got.out, want) {
			t.Errorf("exit code %d, want %d and %q\n%s%s", got.code, code, want, got.out, got.err)
		}
	}
	mustCLI(t, there.message("a", 10), "enqueue", "--store", store)
	doctor(url, exit.OK, "takes messages of at most 1000 bytes") // advice, and nothing critical
	doctor("nats://127.0.0.1:1", exit.Findings, "the broker does not answer")
	doctor("memory:", exit.OK, "cannot be checked without sending")
	mustCLI(t, `{"topic":"nowhere-at-all","key":"k","payload":1}`, "enqueue", "--store", store)
	doctor(url, exit.Findings, `topic "nowhere-at-all" has no destination: "nowhere-at-all": no stream takes the subject`)
}
