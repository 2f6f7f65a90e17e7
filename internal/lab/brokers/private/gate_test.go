package private

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
)

// sent is a request that sends messages with these deduplication ids, ended by a mark.
func sent(ctx context.Context, addr, mark string, ids ...string) *http.Request {
	type entry struct{ Id, MessageBody, MessageGroupId, MessageDeduplicationId string }
	in := struct {
		QueueUrl string
		Entries  []entry
	}{QueueUrl: "http://" + addr + "/000000000000/q.fifo"}
	for i, id := range ids {
		in.Entries = append(in.Entries, entry{fmt.Sprint(i), id + mark, id, id})
	}
	body, _ := json.Marshal(in)
	return called(ctx, addr, "SendMessageBatch", string(body))
}

func called(ctx context.Context, addr, action, body string) *http.Request {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/", strings.NewReader(body))
	req.RequestURI = ""
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", "AmazonSQS."+action)
	return req
}

// gated is a gate before a handler.
func gated(t *testing.T, server http.HandlerFunc) *gate {
	t.Helper()
	s := httptest.NewServer(server)
	t.Cleanup(s.Close)
	g, err := newGate(&testserver.ElasticMQ{Addr: s.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g
}

// TestGateHoldsRepetitions: the reply to a repetition waits for the reply to the first
// request, whose client may be gone. Others do not wait.
func TestGateHoldsRepetitions(t *testing.T) {
	first, write, answered := make(chan struct{}), make(chan struct{}), make(chan string, 1)
	g := gated(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "b-first") {
			close(first)
			<-write
		} else if strings.Contains(string(body), "b-again") {
			defer func() { answered <- "server" }()
		}
	})
	do := func(ctx context.Context, mark string, ids ...string) error {
		resp, err := http.DefaultClient.Do(sent(ctx, g.addr, mark, ids...))
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	gone, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- do(gone, "-first", "a", "b") }()
	<-first
	leave()
	if err := <-left; err == nil {
		t.Error("the first client got a reply")
	}
	again := make(chan error, 1)
	go func() { again <- do(t.Context(), "-again", "c", "b") }()
	<-answered
	if err := do(t.Context(), "-other", "d"); err != nil {
		t.Error(err)
	}
	select {
	case err := <-again:
		t.Errorf("the repetition did not wait: %v", err)
	default:
	}
	close(write)
	if err := <-again; err != nil {
		t.Error(err)
	}
}

// TestGateDoubts: after a first request that failed, a repetition waits until a later
// message is written. A server that is killed meanwhile breaks the connection.
func TestGateDoubts(t *testing.T) {
	for _, killed := range []bool{false, true} {
		mark, written := make(chan struct{}), make(chan struct{})
		g := gated(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			switch {
			case strings.Contains(string(body), "-first"):
				w.WriteHeader(http.StatusInternalServerError)
			case strings.Contains(string(body), `"QueueUrl"`) && strings.Contains(string(body), "/gate"):
				close(mark)
				select {
				case <-written:
				case <-r.Context().Done():
				}
			}
		})
		resp, err := http.DefaultClient.Do(sent(t.Context(), g.addr, "-first", "m"))
		if err != nil || resp.StatusCode != http.StatusInternalServerError {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
		again := make(chan error, 1)
		go func() {
			resp, err := http.DefaultClient.Do(sent(t.Context(), g.addr, "-again", "m"))
			if err == nil {
				resp.Body.Close()
			}
			again <- err
		}()
		<-mark
		select {
		case err := <-again:
			t.Errorf("the repetition did not wait: %v", err)
		default:
		}
		if killed {
			g.close()
		} else {
			close(written)
		}
		if err := <-again; (err != nil) != killed {
			t.Errorf("killed %v: %v", killed, err)
		}
	}
}

// TestElasticMQForgets shows what the gate is for: without it a kill loses messages whose
// repetitions the server has acknowledged. Messages with a first reply stay. This program
// writes the requests by itself, one after the other.
func TestElasticMQForgets(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") != "1" {
		t.Skip("POSTRIDER_MATRIX is not set")
	}
	for _, through := range []bool{false, true} {
		t.Run(fmt.Sprintf("gate=%v", through), func(t *testing.T) {
			s, err := testserver.LaunchElasticMQ(t.Context(), "", testserver.Throughput(), testserver.Durable())
			if err != nil {
				testserver.GiveUp(t, err)
			}
			t.Cleanup(func() { _ = s.Close() })
			g, err := newGate(s)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(g.close)
			addr, kill, restart := s.Addr, s.Kill, s.Restart
			if through {
				addr, kill, restart = g.addr, g.Kill, g.Restart
			}
			first, repeated := forgotten(t, addr, s.Addr, kill, restart)
			t.Logf("acknowledged and gone: %d of first replies, %d of repetitions only", first, repeated)
			if first > 0 || through && repeated > 0 {
				t.Errorf("gate %v: %d and %d acknowledged messages are gone", through, first, repeated)
			}
		})
	}
}

// forgotten sends requests, and each again before its reply, kills the server under them,
// and counts acknowledged messages that are gone after its restart.
func forgotten(t *testing.T, addr, direct string, kill, restart func() error) (first, repeated int) {
	t.Helper()
	const requests, answers = 30, 12
	call := func(req *http.Request, out any) bool {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(out) == nil
	}
	if !call(called(t.Context(), addr, "CreateQueue", `{"QueueName":"q.fifo","Attributes":{"FifoQueue":"true"}}`), &struct{}{}) {
		t.Fatal("cannot create the queue")
	}
	var (
		mu    sync.Mutex
		acked [2]map[string]bool
		wg    sync.WaitGroup
		some  = make(chan struct{}, 2*requests)
	)
	for turn := range acked {
		acked[turn] = make(map[string]bool)
		for n := range requests {
			wg.Go(func() {
				ids := make([]string, 10)
				for i := range ids {
					ids[i] = fmt.Sprintf("m%d-%d", n, i)
				}
				var out struct{ Successful []struct{ MessageId string } }
				if call(sent(t.Context(), addr, "", ids...), &out) {
					mu.Lock()
					defer mu.Unlock()
					for _, m := range out.Successful {
						acked[turn][m.MessageId] = true
					}
					some <- struct{}{}
				}
			})
		}
		if turn == 0 {
			<-some // the first requests have arrived
		}
	}
	for range answers {
		<-some
	}
	if err := kill(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := restart(); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]bool)
	for quiet := 0; quiet < 5; { // the server restores its messages when it is ready
		var out struct{ Messages []struct{ MessageId string } }
		body := `{"QueueUrl":"http://` + direct + `/000000000000/q.fifo","MaxNumberOfMessages":10,"VisibilityTimeout":600,"WaitTimeSeconds":1}`
		if !call(called(t.Context(), direct, "ReceiveMessage", body), &out) || len(out.Messages) == 0 {
			quiet++
		}
		for _, m := range out.Messages {
			found[m.MessageId] = true
		}
	}
	for id := range acked[1] {
		if !found[id] && !acked[0][id] {
			repeated++
		}
	}
	for id := range acked[0] {
		if !found[id] {
			first++
		}
	}
	return first, repeated
}
