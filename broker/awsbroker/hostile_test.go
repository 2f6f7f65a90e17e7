package awsbroker_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/keychain/latetest"
)

// handled is a server whose handler runs alone.
func handled(t *testing.T, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	var mu sync.Mutex
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		handle(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func action(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.")
}

func fails(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"__type":"com.amazonaws.sqs#%s","message":"no"}`, code)
}

// TestForeignAnswers: an answer acknowledges the entries that it names with success, and
// with success only. Ids that no entry has acknowledge nothing, and an id that is named
// twice counts once.
//
// Promises: L, O
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	type list []map[string]any
	id := func(text string) map[string]any { return map[string]any{"Id": text, "MessageId": "m"} }
	no := func(text string) map[string]any {
		return map[string]any{"Id": text, "Code": "InternalError", "Message": "no"}
	}
	for name, c := range map[string]struct {
		successful, failed list
		acknowledged       []int
	}{
		"every entry":             {list{id("0"), id("1"), id("2")}, nil, []int{0, 1, 2}},
		"twice":                   {list{id("1"), id("0"), id("1"), id("1")}, nil, []int{0, 1}},
		"both":                    {list{id("0"), id("1"), id("2")}, list{no("1")}, []int{0, 2}},
		"failed before, and both": {list{id("2"), id("1")}, list{no("0"), no("1")}, []int{2}},
		"ids of nobody":           {list{id("3"), id("-1"), id("01"), id("+2"), id(""), id("a"), {"MessageId": "m"}}, nil, nil},
		"nothing":                 {nil, nil, nil},
		"a body that is not ours": {list{id("0"), {"Id": "1", "MessageId": "m", "MD5OfMessageBody": "9dd4e461268c8034f5c8564e155c67a0"}, {"Id": "2", "MD5OfMessageBody": "9dd4e461268c8034f5c8564e155c67a6"}}, nil, []int{0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := handled(t, func(w http.ResponseWriter, r *http.Request) {
				if action(r) != "SendMessageBatch" {
					fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
					return
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"Successful": c.successful, "Failed": c.failed})
			})
			sink := open(t, "sqs://key:secret@us-east-1?endpoint="+s.URL, nil)
			errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "x"), message(2, "b", "x"), message(3, "c", "x")}})
			for i := range 3 {
				var err error
				if errs != nil {
					err = errs[i]
				}
				switch {
				case slices.Contains(c.acknowledged, i) != (err == nil):
					t.Errorf("message %d: %v", i, err)
				case err != nil && broker.Classify(err).Class != broker.ClassUnknown:
					t.Errorf("message %d may be stored, and is %v", i, err)
				}
			}
		})
	}
}

// TestSettlementWithoutAnAnswer: a message that the answer to its deletion, or to the
// extension of its time, does not name is not settled and not extended.
func TestSettlementWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	var (
		silent  = true
		deleted int
	)
	s := handled(t, func(w http.ResponseWriter, r *http.Request) {
		switch action(r) {
		case "ReceiveMessage":
			_ = json.NewEncoder(w).Encode(map[string]any{"Messages": []map[string]any{stored(0, "g", "b", nil)}})
		case "DeleteMessageBatch", "ChangeMessageVisibilityBatch":
			if silent {
				fmt.Fprint(w, `{}`)
				return
			}
			if action(r) == "DeleteMessageBatch" {
				deleted++
			}
			fmt.Fprint(w, `{"Successful":[{"Id":"0"}],"Failed":[]}`)
		default:
			fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
		}
	})
	from := source(t, "sqs://key:secret@us-east-1?endpoint="+s.URL, "orders")
	d := receive(t, from, 1)[0]
	ack := []broker.Verdict{{Delivery: d, Ack: true}}
	if err := from.Extend(t.Context(), []broker.Delivery{d}); err == nil {
		t.Error("an extension without an answer succeeds")
	}
	if err := from.Settle(t.Context(), ack); err == nil {
		t.Error("a deletion without an answer succeeds")
	}
	silent = false
	must(t, from.Extend(t.Context(), []broker.Delivery{d}))
	must(t, from.Settle(t.Context(), ack))
	if deleted != 1 {
		t.Errorf("deleted %d times", deleted)
	}
}

// TestClockSkew: a clock that is an hour off costs one refused request. The next one is
// signed with the service's time.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	now := time.Now().Add(time.Hour) // of the service
	var sent []string
	s := handled(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", now.UTC().Format(http.TimeFormat))
		signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
		if err != nil || now.Sub(signed).Abs() > 15*time.Minute {
			fails(w, http.StatusForbidden, "SignatureDoesNotMatch")
			return
		}
		if action(r) != "SendMessageBatch" {
			fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
			return
		}
		body, _ := io.ReadAll(r.Body)
		sent = append(sent, string(body))
		fmt.Fprint(w, `{"Successful":[{"Id":"0","MessageId":"m"}]}`)
	})
	sink := open(t, "sqs://key:secret@us-east-1?endpoint="+s.URL, nil)
	one := broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}}
	e := broker.Classify(sink.Deliver(t.Context(), one)[0])
	if e.Class != broker.ClassOutage || e.Code != "CREDENTIALS" || !strings.Contains(e.Error(), "the machine's clock") {
		t.Errorf("class %v, code %s: %v", e.Class, e.Code, e)
	}
	if errs := sink.Deliver(t.Context(), one); errs != nil || len(sent) != 1 {
		t.Errorf("%v; %d requests with messages", errs, len(sent))
	}
}

// TestRevokedSession: a role's session, or a key, that the service rejects long before it
// expires is replaced with the next request. The message of the rejected one was not sent.
func TestRevokedSession(t *testing.T) {
	assumed := 0
	sts := handled(t, func(w http.ResponseWriter, _ *http.Request) {
		assumed++
		fmt.Fprintf(w, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>`+
			`<AccessKeyId>session%d</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration>`+
			`</Credentials></AssumeRoleResult></AssumeRoleResponse>`, assumed, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	})
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	revoked, taken := "", 0
	s := handled(t, func(w http.ResponseWriter, r *http.Request) {
		if revoked != "" && strings.Contains(r.Header.Get("Authorization"), "Credential="+revoked+"/") {
			fails(w, http.StatusForbidden, "ExpiredToken")
			return
		}
		switch action(r) {
		case "SendMessageBatch":
			taken++
			fmt.Fprint(w, `{"Successful":[{"Id":"0","MessageId":"m"}]}`)
		case "ReceiveMessage":
			_ = json.NewEncoder(w).Encode(map[string]any{"Messages": []map[string]any{stored(0, "g", "b", nil)}})
		default:
			fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
		}
	})
	url := "sqs://key:secret@us-east-1?endpoint=" + s.URL + "&role=arn:aws:iam::123456789012:role/relay"
	sink := open(t, url, nil)
	deliver := func(n int) *broker.Error {
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(n, "a", "x")}})
		if errs == nil {
			return nil
		}
		return broker.Classify(errs[0])
	}
	if e := deliver(1); e != nil || assumed != 1 {
		t.Fatalf("%v; assumed %d times", e, assumed)
	}
	revoked = "session1"
	if e := deliver(2); e == nil || e.Class != broker.ClassOutage || e.Code != "CREDENTIALS" {
		t.Errorf("with a revoked session: %v", e)
	}
	if e := deliver(2); e != nil || assumed != 2 || taken != 2 {
		t.Errorf("after it: %v; assumed %d times, %d messages", e, assumed, taken)
	}
	from := source(t, url, "orders")
	d := receive(t, from, 1)[0]
	revoked = fmt.Sprintf("session%d", assumed)
	if err := from.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}); err == nil {
		t.Error("settled with a revoked session")
	}
	if err := from.Extend(t.Context(), []broker.Delivery{d}); err == nil || strings.Contains(err.Error(), "ExpiredToken") {
		t.Errorf("with a new session: %v", err) // this service answers no extension
	}
}

// TestLateRequests: a call that gets no room for a request in the first half of its time
// begins none in the second. What it did not send counts as not tried.
func TestLateRequests(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	s := fakeService(t, func(c call) reply {
		if c.action == "SendMessageBatch" && c.n == 1 {
			close(asked)
			<-answer
		}
		return reply{}
	})
	latetest.Run(t, latetest.Service{Sink: open(t, s.url()+"&window=1", nil), Asked: asked, Answer: answer, Sent: func() int { return len(s.sent()) }},
		[]postrider.Message{message(1, "a", "a1")}, []postrider.Message{message(2, "b", "b1"), message(3, "b", "b2"), message(4, "", "c")})
}
