package private_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
)

// TestSNS publishes to a topic, and requires what its queue gets: every record, and the
// records of each key in order, also after a kill of the front.
func TestSNS(t *testing.T) {
	t.Parallel()
	b, err := private.LaunchSNS(t.Context())
	if missing := (*testserver.MissingError)(nil); errors.As(err, &missing) {
		testserver.GiveUp(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Make(t.Context(), brokers.Topic{Name: "lab"}); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	const keys, each = 5, 12
	publish := func(n int) {
		t.Helper()
		in := url.Values{"Action": {"PublishBatch"}, "Version": {"2010-03-31"}, "TopicArn": {"arn:aws:sns:us-east-1:" + testserver.MotoAccount + ":lab.fifo"}}
		for k := range keys {
			entry := fmt.Sprintf("PublishBatchRequestEntries.member.%d.", k+1)
			in.Set(entry+"Id", fmt.Sprint(k))
			in.Set(entry+"Message", fmt.Sprintf("k%d:%d", k, n))
			in.Set(entry+"MessageGroupId", fmt.Sprint("k", k))
			in.Set(entry+"MessageDeduplicationId", fmt.Sprintf("k%d:%d", k, n))
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, u.Query().Get("endpoint"), strings.NewReader(in.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/sns/aws4_request, SignedHeaders=host, Signature=0")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	for n := range each {
		publish(n)
		if n == each/2 {
			if err := errors.Join(b.Kill(), b.Restart()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // the readers take it
		n, err := b.Count(t.Context(), "lab")
		if err != nil || time.Now().After(end) {
			t.Fatalf("counted %d of %d: %v", n, keys*each, err)
		}
		if n == keys*each {
			break
		}
	}
	next := make(map[string]int)
	if err := b.Read(t.Context(), "lab", func(r brokers.Record) {
		key, n, _ := strings.Cut(string(r.Payload), ":")
		if n != fmt.Sprint(next[key]) {
			t.Errorf("%s: read %s, want %d", key, n, next[key])
		}
		next[key]++
	}); err != nil {
		t.Fatal(err)
	}
	if len(next) != keys || next["k0"] != each {
		t.Errorf("read %v", next)
	}
}
