package awsbroker_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
)

// wild is a FIFO queue with every fault of a service that keeps what it has acknowledged:
// it fails entries that it has stored, leaves entries out of its answers, loses answers,
// and stores a request's messages long after its answer was lost.
type wild struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	calm  bool
	seen  map[string]bool     // deduplication ids
	logs  map[string][]string // payloads by group
	acked map[string]bool     // payloads
	late  []sentEntry         // stored at some later time
}

type sentEntry struct{ Id, MessageBody, MessageGroupId, MessageDeduplicationId string }

func (q *wild) store(e sentEntry) {
	if !q.seen[e.MessageDeduplicationId] {
		q.seen[e.MessageDeduplicationId] = true
		q.logs[e.MessageGroupId] = append(q.logs[e.MessageGroupId], e.MessageBody)
	}
}

func (q *wild) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	q.mu.Lock()
	defer q.mu.Unlock()
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if !strings.HasSuffix(r.Header.Get("X-Amz-Target"), "SendMessageBatch") {
		fmt.Fprintf(w, `{"QueueUrl":"http://%s/000000000000/orders.fifo"}`, r.Host)
		return
	}
	var in struct{ Entries []sentEntry }
	_ = json.Unmarshal(body, &in)
	q.rnd.Shuffle(len(q.late), func(i, j int) { q.late[i], q.late[j] = q.late[j], q.late[i] })
	for len(q.late) > 0 && (q.calm || q.rnd.IntN(3) == 0) {
		q.store(q.late[0])
		q.late = q.late[1:]
	}
	out := map[string][]map[string]any{"Successful": {}, "Failed": {}}
	fault := 0
	if !q.calm {
		fault = q.rnd.IntN(10)
	}
	for _, e := range in.Entries {
		fate := 9
		if !q.calm {
			fate = q.rnd.IntN(10)
		}
		switch {
		case fate == 0:
			q.late = append(q.late, e)
		case fate == 1: // never arrives
		default:
			q.store(e)
		}
		switch {
		case fate <= 2:
			code := []string{"InternalError", "RequestThrottled", "ServiceUnavailable"}[q.rnd.IntN(3)]
			out["Failed"] = append(out["Failed"], map[string]any{"Id": e.Id, "Code": code, "Message": "no"})
		case fate == 3: // not in the answer
		default:
			out["Successful"] = append(out["Successful"], map[string]any{"Id": e.Id, "MessageId": e.Id})
			if fault > 3 || q.calm {
				q.acked[e.MessageBody] = true
			}
		}
	}
	if q.rnd.IntN(2) == 0 {
		slices.Reverse(out["Successful"])
	}
	switch {
	case q.calm || fault > 3:
		_ = json.NewEncoder(w).Encode(out)
	case fault == 0:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"__type":"com.amazonaws.sqs#ServiceUnavailable","message":"no"}`)
	case fault == 1:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `not JSON`)
	case fault == 2:
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"__type":"com.amazonaws.sqs#ThrottlingException","message":"no"}`)
	default:
		panic(http.ErrAbortHandler)
	}
}

// TestWildQueue: whatever a service does with requests and answers, each group has its
// messages in order and without a gap at any time, and what the sink reports as delivered
// was acknowledged. The sender repeats what failed, and sometimes what did not.
//
// Promises: L, O
func TestWildQueue(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		const keys, each = 7, 9
		rnd := rand.New(rand.NewPCG(seed, 1))
		q := &wild{rnd: rand.New(rand.NewPCG(seed, 2)), seen: map[string]bool{}, logs: map[string][]string{}, acked: map[string]bool{}}
		server := httptest.NewServer(q)
		sink, err := awsbroker.Open("sqs://key:secret@us-east-1?endpoint="+server.URL, &awsbroker.SinkOptions{Window: 4, Timeout: time.Minute})
		must(t, err)
		next := make([]int, keys) // the first version of each key whose delivery is unconfirmed
		for round := 0; slices.Min(next) < each; round++ {
			if round == 200 {
				q.mu.Lock()
				q.calm = true
				q.mu.Unlock()
			}
			var msgs []postrider.Message
			for v := range each {
				for k := range keys {
					if v >= next[k] {
						msgs = append(msgs, message(k*100+v, fmt.Sprintf("k%d", k), fmt.Sprintf("k%d:%d", k, v)))
					}
				}
			}
			errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
			q.mu.Lock()
			for i := range msgs {
				var k, v int
				_, _ = fmt.Sscanf(string(msgs[i].Payload), "k%d:%d", &k, &v)
				if errs != nil && errs[i] != nil {
					continue
				}
				if !q.acked[string(msgs[i].Payload)] {
					t.Errorf("seed %d: %s was not acknowledged", seed, msgs[i].Payload)
				}
				if v != next[k] {
					t.Errorf("seed %d: k%d:%d was delivered before version %d", seed, k, v, next[k])
				}
				next[k] = v + 1
			}
			q.mu.Unlock()
			if rnd.IntN(4) == 0 { // a relay that was killed
				k := rnd.IntN(keys)
				next[k] = rnd.IntN(next[k] + 1)
			}
		}
		for k := range keys {
			group := q.logs[fmt.Sprintf("k%d", k)]
			for v, payload := range group {
				if payload != fmt.Sprintf("k%d:%d", k, v) {
					t.Errorf("seed %d: group k%d has %v", seed, k, group)
					break
				}
			}
			if len(group) != each {
				t.Errorf("seed %d: group k%d has %d messages", seed, k, len(group))
			}
		}
		sink.Close()
		server.Close()
	}
}

// TestBatchEdge: a request is filled up to the service's limit, and no byte further.
func TestBatchEdge(t *testing.T) {
	t.Parallel()
	for more, want := range []int{1, 2} {
		s := fakeService(t, func(call) reply { return reply{} })
		sink := open(t, s.url(), nil)
		msgs := []postrider.Message{message(1, "a", strings.Repeat("x", 300<<10)), message(2, "b", strings.Repeat("y", 300<<10)), message(3, "c", "")}
		total := 0
		for i := range msgs {
			msgs[i].Payload = append(msgs[i].Payload, 'z')
			p, err := sink.Info().Preview("main", &msgs[i])
			must(t, err)
			total += p.Bytes
		}
		msgs[2].Payload = []byte(strings.Repeat("z", limit-total+1+more))
		if errs := sink.Deliver(t.Context(), broker.Batch{Pipe: "main", Messages: msgs}); errs != nil {
			t.Fatal(errs)
		}
		if got := len(s.of("SendMessageBatch")); got != want || len(s.sent()) != 3 {
			t.Errorf("%d bytes above the limit: %d requests, want %d", more, got, want)
		}
	}
}
