package main

import (
	"crypto/rand"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/sqlitestore"
)

// stream is a JetStream stream whose limit a test changes.
type stream struct {
	t     *testing.T
	js    jetstream.JetStream
	topic string
}

func newStream(t *testing.T, url string, limit int32) *stream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{t: t, js: js, topic: "t-" + strings.ToLower(rand.Text()[:10])}
	s.limit(limit)
	return s
}

func (s *stream) limit(limit int32) {
	s.t.Helper()
	_, err := s.js.CreateOrUpdateStream(s.t.Context(), jetstream.StreamConfig{Name: s.topic, Subjects: []string{s.topic}, MaxMsgSize: limit})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stream) count() int {
	s.t.Helper()
	st, err := s.js.Stream(s.t.Context(), s.topic)
	if err != nil {
		s.t.Fatal(err)
	}
	return int(st.CachedInfo().State.Msgs)
}

// message is one line for enqueue.
func (s *stream) message(key string, size int) string {
	return `{"topic":"` + s.topic + `","key":"` + key + `","payload_text":"` + strings.Repeat("x", size) + `"}` + "\n"
}

func deadOf(t *testing.T, store string, more ...string) []answer.Record {
	t.Helper()
	var records []answer.Record
	out := mustCLI(t, "", append([]string{"dead", "list", "-o", "json", "--store", store}, more...)...)
	if err := json.Unmarshal([]byte(out), &records); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return records
}

// A payload that the broker refuses becomes a dead letter that a person sees,
// sends again and removes, while a relay lives and while none does.
func TestDeadLetters(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	mustCLI(t, "", "migrate", "--store", file)
	for name, store := range map[string]string{"postgres": outboxOn(t, testserver.SharedPostgres(t, "18")), "sqlite": file} {
		t.Run(name, func(t *testing.T) { deadLetters(t, store) })
	}
}

func deadLetters(t *testing.T, store string) {
	t.Helper()
	broker := testserver.SharedNATS(t).URL
	s := newStream(t, broker, 1000)
	settled := func(p *process) {
		t.Helper()
		until(t, "the backlog is gone", p, func() bool {
			st := statusOf(t, store)
			return st.Pending == st.Parked["waiting"]
		})
	}
	// Long enough that the commands find it alive on a machine that is starved.
	relay := launchRelay(t, store, broker, "--lease-ttl", "10s")
	mustCLI(t, s.message("a", 10)+s.message("a", 4000)+s.message("a", 20)+s.message("b", 10), "enqueue", "--store", store)
	settled(relay)
	dead := deadOf(t, store)
	if len(dead) != 1 || dead[0].Key != "a" || !dead[0].BlocksKey || dead[0].Class != "rejected" || dead[0].Code != "10054" {
		t.Fatalf("dead letters %+v, want the large one of key a with class and code", dead)
	}
	seq := dead[0].Seq
	if n := relay.said.count(`msg="dead letter" seq=` + seq); n != 1 {
		t.Errorf("the relay said the dead letter %d times:\n%s", n, relay.said)
	}
	for _, tc := range []struct {
		want, not string
		args      []string
	}{
		{"message size exceeds maximum allowed", "xxxx", []string{"list"}},
		{"--code 10054 --error 'description=message size exceeds maximum allowed'", "xxxx", []string{"list", "--group"}},
		{`"letters":1,"blocked_keys":1,"topic":"`, "xxxx", []string{"list", "--group", "-o", "json"}},
		{"none", "10054", []string{"list", "--group", "--after", seq}},
		{"there may be more: --after " + seq, "xxxx", []string{"list", "--group", "--limit", "1"}},
		{"blocks its key  true", "xxxx", []string{"show", seq}},
		{"xxxx", "", []string{"show", seq, "--payload"}},
		{`"seq":"` + seq + `"`, `"payload":`, []string{"show", seq, "-o", "json"}},
	} {
		out := mustCLI(t, "", append(append([]string{"dead"}, tc.args...), "--store", store)...)
		if !strings.Contains(out, tc.want) || (tc.not != "" && strings.Contains(out, tc.not)) {
			t.Errorf("dead %v prints %q, want %q and not %q", tc.args, out, tc.want, tc.not)
		}
	}

	// The relay lives: it executes the request, and is refused again.
	if out := mustCLI(t, "", "dead", "retry", seq, "--store", store); !strings.Contains(out, "retry  done") || strings.Contains(out, "no relay") {
		t.Errorf("dead retry prints %q", out)
	}
	until(t, "the dead letter is dead again", relay, func() bool { d := deadOf(t, store); return len(d) == 1 && d[0].Generation == 1 })
	s.limit(10_000)
	mustCLI(t, "", "dead", "retry", seq, "--reason", "limit raised", "--store", store)
	until(t, "the key's messages arrive", relay, func() bool { return s.count() == 4 && len(deadOf(t, store, "--all")) == 0 })

	// Nobody lives: the command is the owner for a moment.
	mustCLI(t, s.message("a", 40_000)+s.message("a", 20)+s.message("b", 40_000), "enqueue", "--store", store)
	until(t, "two more dead letters", relay, func() bool { return len(deadOf(t, store)) == 2 })
	relay.stop()
	dead = deadOf(t, store)
	behind := "1 message of key a behind dead letter " + dead[0].Seq + ": `postrider dead retry " + dead[0].Seq + " --reason WHY`"
	if out := mustCLI(t, "", "status", "--lanes", "--store", store); !strings.Contains(out, behind) {
		t.Errorf("status --lanes prints %q, want %q", out, behind)
	}
	if out := mustCLI(t, "", "status", "-o", "json", "--store", store); !strings.Contains(out, `"blocked":{"seq":"`+dead[0].Seq+`","key":"a","waiting":1,`) {
		t.Errorf("status prints %q", out)
	}
	if out := mustCLI(t, "", "dead", "retry", dead[0].Seq, "--store", store); !strings.Contains(out, "no relay lives: it is sent when one runs") {
		t.Errorf("dead retry without a relay prints %q", out)
	}
	retryUndead(t, store)
	out := mustCLI(t, "", "dead", "discard", dead[1].Seq, "--reason", "nobody wants it", "-o", "json", "--store", store)
	if !strings.Contains(out, `"seq":"`+dead[1].Seq+`"`) || !strings.Contains(out, `"result":"done"`) {
		t.Errorf("dead discard prints %q", out)
	}
	if got := cli(t, nil, "", "dead", "discard", dead[1].Seq, "--reason", "again", "--store", store); got.code != 1 || !strings.Contains(got.err, "is not parked") {
		t.Errorf("a second discard: exit code %d, %q", got.code, got.err)
	}
	if left := deadOf(t, store, "--all"); len(left) != 2 || left[0].State != "retry" {
		t.Errorf("parked %+v, want the one to be sent again and what waits behind it", left)
	}
	s.limit(100_000)
	relay = launchRelay(t, store, broker)
	until(t, "the rest has been sent", relay, func() bool { return s.count() == 6 && len(deadOf(t, store, "--all")) == 0 })
	relay.stop()
}

// retryUndead retries what is not dead: a failed message is sent now as the attempt that it is,
// and what waits behind it stays as it is.
func retryUndead(t *testing.T, store string) {
	t.Helper()
	before := deadOf(t, store, "--all", "--key", "a")
	if len(before) != 2 || before[0].State != "retry" || before[1].State != "waiting" {
		t.Fatalf("parked %+v, want one to be sent again and one that waits", before)
	}
	out := mustCLI(t, "", "dead", "retry", before[0].Seq, before[1].Seq, "--store", store)
	if !strings.Contains(out, "done       it was not dead: its next attempt is now") || !strings.Contains(out, "unchanged  it is not dead: it waits behind") {
		t.Errorf("dead retry of what is not dead prints %q", out)
	}
	for i, after := range deadOf(t, store, "--all", "--key", "a") {
		if after.Generation != before[i].Generation || after.State != before[i].State {
			t.Errorf("after the retry %+v, before %+v", after, before[i])
		}
	}
}

// Causes are those of the first letters, unless more are asked for: a million would take a minute.
func TestCausesOfTheFirstLetters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	store := "sqlite:" + path
	mustCLI(t, "", "migrate", "--store", store)
	pool, err := sqlitestore.OpenDB(path)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	_, err = pool.ExecContext(t.Context(), `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5001)
		INSERT INTO postrider_parked (pipe, seq, lane, state, captures, due_at, attempts, class, code, error, id, topic, key, type, payload, content_type, headers, version, schema_version, created_at)
		SELECT 'main', i, 0, 'dead', 0, 0, 1, 'rejected', 'C', 'no', i, 't', '', '', x'', '', '{}', 0, 0, 0 FROM n`)
	if err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{"there may be more: --after 5000": nil, `5001 `: {"--limit", "6000"}} {
		out := mustCLI(t, "", append([]string{"dead", "list", "--group", "--store", store}, args...)...)
		if !strings.Contains(out, want) || strings.Contains(out, "may be more") != (args == nil) {
			t.Errorf("dead list --group %v prints %q, want %q", args, out, want)
		}
		r := cli(t, nil, "", append([]string{"dead", "list", "--group", "--output", "json", "--store", store}, args...)...)
		if said := strings.Contains(r.err, "the counts are of 5000 letters, and there may be more: --after 5000"); r.code != 0 || said != (args == nil) {
			t.Errorf("dead list --group --output json %v ends with %d and %q", args, r.code, r.err)
		}
	}
}
