package awsbroker_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/envelope"
)

// TestDedupIDs: a repetition has the deduplication id of the first. Another pipe, another
// destination and a replay have others, or one would be dropped for the other.
//
// Promises: L
func TestDedupIDs(t *testing.T) {
	t.Parallel()
	var got []string
	s := handled(t, func(w http.ResponseWriter, r *http.Request) {
		if action(r) != "SendMessageBatch" {
			fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
			return
		}
		body, _ := io.ReadAll(r.Body)
		var in struct{ Entries []sentEntry }
		_ = json.Unmarshal(body, &in)
		for _, e := range in.Entries {
			got = append(got, e.MessageDeduplicationId)
		}
		fmt.Fprint(w, `{"Successful":[{"Id":"0","MessageId":"m"}]}`)
	})
	sink := open(t, "sqs://key:secret@us-east-1?endpoint="+s.URL, nil)
	deliver := func(pipe, topic, generation string) string {
		t.Helper()
		m := message(1, "a", "x")
		m.Topic = topic
		if generation != "" {
			m.Headers = map[string]string{envelope.Generation: generation}
		}
		if errs := sink.Deliver(t.Context(), broker.Batch{Pipe: pipe, Messages: []postrider.Message{m}}); errs != nil {
			t.Fatal(errs)
		}
		return got[len(got)-1]
	}
	first := deliver("main", "orders", "")
	if again := deliver("main", "orders", ""); again != first {
		t.Errorf("a repetition has %s, the first %s", again, first)
	}
	seen := map[string]bool{first: true}
	for _, id := range []string{deliver("audit", "orders", ""), deliver("main", "orders-audit", ""), deliver("main", "orders", "1"), deliver("main", "orders", "2")} {
		if seen[id] {
			t.Errorf("%s twice", id)
		}
		seen[id] = true
	}
	if long := deliver(strings.Repeat("p", 100), "orders", ""); len(long) > 128 || long == deliver(strings.Repeat("p", 101), "orders", "") {
		t.Errorf("an id of %d characters: %s", len(long), long)
	}
}

// TestWindow: requests with messages of different groups are under way side by side, as
// many as the window has, over all calls.
func TestWindow(t *testing.T) {
	t.Parallel()
	const window, calls, keys = 4, 3, 30
	var (
		now, most atomic.Int32
		full      sync.Once
		reached   = make(chan struct{}) // closed when the window is full
	)
	s := fakeService(t, func(c call) reply {
		if c.action != "SendMessageBatch" {
			return reply{}
		}
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if n == window {
			full.Do(func() { close(reached) })
		}
		select {
		case <-reached:
		case <-time.After(time.Minute):
			t.Error("the window is never full")
		}
		return reply{}
	})
	sink := open(t, s.url()+fmt.Sprint("&window=", window), nil)
	var wg sync.WaitGroup
	for c := range calls {
		wg.Go(func() {
			var msgs []postrider.Message
			for k := range keys {
				msgs = append(msgs, message(c*keys+k, fmt.Sprintf("%d-%d", c, k), "x"))
			}
			if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
				t.Error(errs)
			}
		})
	}
	wg.Wait()
	if most.Load() != window || len(s.sent()) != calls*keys {
		t.Errorf("%d requests at once, %d messages; want %d and %d", most.Load(), len(s.sent()), window, calls*keys)
	}
}

// TestProfile: region and keys of a URL without them are those of the SDK's files.
func TestProfile(t *testing.T) {
	dir := t.TempDir()
	config, keys := filepath.Join(dir, "config"), filepath.Join(dir, "credentials")
	must(t, os.WriteFile(config, []byte("[default]\nregion = eu-north-1\n[profile shop]\nregion = eu-west-3\n"), 0o600))
	must(t, os.WriteFile(keys, []byte("[default]\naws_access_key_id = AKDEFAULT\naws_secret_access_key = s\n[shop]\naws_access_key_id = AKSHOP\naws_secret_access_key = s\n"), 0o600))
	for name, value := range map[string]string{
		"AWS_CONFIG_FILE": config, "AWS_SHARED_CREDENTIALS_FILE": keys, "AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_PROFILE": "", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
	} {
		t.Setenv(name, value)
	}
	var scope string
	s := handled(t, func(w http.ResponseWriter, r *http.Request) {
		scope = r.Header.Get("Authorization")
		fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
	})
	for url, want := range map[string]string{
		"sqs://default?endpoint=" + s.URL:                "Credential=AKDEFAULT/",
		"sqs://default?profile=shop&endpoint=" + s.URL:   "Credential=AKSHOP/",
		"sqs://us-east-1?profile=shop&endpoint=" + s.URL: "Credential=AKSHOP/",
	} {
		target, err := awsbroker.ParseURL(url)
		must(t, err)
		conf, err := target.Config(t.Context())
		must(t, err)
		region := map[bool]string{true: "us-east-1", false: map[bool]string{true: "eu-west-3", false: "eu-north-1"}[strings.Contains(url, "profile")]}[target.Region != ""]
		if conf.Region != region {
			t.Errorf("%s: region %s, want %s", url, conf.Region, region)
		}
		lacking, err := open(t, url, nil).Info().Probe(t.Context(), []string{"orders"})
		if err != nil || lacking[0] != nil || !strings.Contains(scope, want) || !strings.Contains(scope, "/"+region+"/sqs/") {
			t.Errorf("%s: signed %s, want %s and %s; %v, %v", url, scope, want, region, lacking, err)
		}
	}
}
