package httpbroker_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/httpbroker"
)

// serve starts an endpoint that receives topic.
func serve(t *testing.T, topic string, h http.HandlerFunc) httpbroker.Endpoint {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	e := endpoint(server.URL)
	e.Name, e.Topics = topic, []string{topic}
	return e
}

// good returns an endpoint that accepts every message.
func good(t *testing.T) httpbroker.Endpoint {
	t.Helper()
	return serve(t, "good", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
}

func messages(topic string, first, n int) []postrider.Message {
	msgs := make([]postrider.Message, n)
	for i := range msgs {
		msgs[i] = postrider.Message{
			ID: fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", first+i), Topic: topic, Key: fmt.Sprint("k", first+i), Payload: []byte("{}"),
		}
	}
	return msgs
}

// deliver returns one classified error per message.
func deliver(t *testing.T, s *httpbroker.Sink, msgs ...postrider.Message) []*broker.Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out := make([]*broker.Error, len(msgs))
	for i, err := range s.Deliver(ctx, broker.Batch{Messages: msgs}) {
		out[i] = broker.Classify(err)
	}
	return out
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		status int
		header string // Retry-After
		class  broker.Class
		code   string
		after  time.Duration
	}{
		{301, "", broker.ClassOutage, "HTTP_301", 0},
		{400, "", broker.ClassOutage, "HTTP_400", 0},
		{401, "", broker.ClassOutage, "HTTP_401", 0},
		{403, "", broker.ClassOutage, "HTTP_403", 0},
		{404, "", broker.ClassOutage, "HTTP_404", 0},
		{408, "", broker.ClassOutage, "HTTP_408", 0},
		{410, "", broker.ClassOutage, "HTTP_410", 0},
		{413, "", broker.ClassRejected, "HTTP_413", 0},
		{415, "", broker.ClassRejected, "HTTP_415", 0},
		{422, "", broker.ClassRejected, "HTTP_422", 0},
		{425, "", broker.ClassThrottled, "HTTP_425", 0},
		{429, "", broker.ClassThrottled, "HTTP_429", 0},
		{429, "70", broker.ClassThrottled, "HTTP_429", 70 * time.Second},
		{500, "", broker.ClassOutage, "HTTP_500", 0},
		{502, "", broker.ClassOutage, "HTTP_502", 0},
		{503, "", broker.ClassOutage, "HTTP_503", 0},
		{503, "70", broker.ClassThrottled, "HTTP_503", 70 * time.Second},
		{503, time.Now().Add(30 * time.Minute).UTC().Format(http.TimeFormat), broker.ClassThrottled, "HTTP_503", 30 * time.Minute},
		{503, "31536000", broker.ClassThrottled, "HTTP_503", time.Hour},
		{503, "99999999999999999999", broker.ClassThrottled, "HTTP_503", time.Hour},
		{503, "soon", broker.ClassThrottled, "HTTP_503", 0},
		{503, "-99999999999999999999", broker.ClassThrottled, "HTTP_503", 0},
		{503, time.Now().Add(-30 * time.Minute).UTC().Format(http.TimeFormat), broker.ClassThrottled, "HTTP_503", 0},
		{504, "", broker.ClassOutage, "HTTP_504", 0},
	} {
		followed := false
		bad := serve(t, "bad", func(w http.ResponseWriter, r *http.Request) {
			if followed = r.URL.Path != "/"; followed {
				return
			}
			w.Header().Set("Location", "/elsewhere?token=geheim")
			if c.header != "" {
				w.Header().Set("Retry-After", c.header)
			}
			w.WriteHeader(c.status)
		})
		s := newSink(t, nil, good(t), bad)
		errs := deliver(t, s, append(messages("bad", 0, 1), messages("good", 1, 1)...)...)
		e := errs[0]
		if e == nil || e.Class != c.class || e.Code != c.code || e.Destination != "bad" {
			t.Fatalf("%d: answered %v, want %v %s", c.status, e, c.class, c.code)
		}
		if e.RetryAfter < c.after/2 || e.RetryAfter > max(c.after, 5*time.Second) { // part of the pause has passed; without Retry-After it is the breaker's own pause
			t.Errorf("%d, Retry-After %q: wait %v, want %v", c.status, c.header, e.RetryAfter, c.after)
		}
		if errs[1] != nil || followed || strings.Contains(e.Error(), "geheim") {
			t.Errorf("%d: the other endpoint %v, redirect followed %v, error %v", c.status, errs[1], followed, e)
		}
	}
}

// TestWhoseFaultItIs: a bad message is distinguished from a failing endpoint, because the
// endpoint accepts others. Neither costs the other attempts.
func TestWhoseFaultItIs(t *testing.T) {
	var down atomic.Bool
	s := newSink(t, nil, good(t), serve(t, "bad", func(w http.ResponseWriter, r *http.Request) {
		if down.Load() || r.Header.Get("postrider-key") == "k0" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	poison := messages("bad", 0, 1)
	if e := deliver(t, s, poison...)[0]; e.Class != broker.ClassOutage {
		t.Fatalf("the first time nobody can tell: %v", e)
	}
	if e := deliver(t, s, poison...)[0]; e.Class != broker.ClassOutage {
		t.Fatalf("nothing else was accepted since: %v", e)
	}
	if e := deliver(t, s, messages("bad", 1, 1)...)[0]; e != nil {
		t.Fatal(e)
	}
	if e := deliver(t, s, poison...)[0]; e.Class != broker.ClassFailed || e.Code != "HTTP_500" {
		t.Fatalf("another one was accepted since: %v", e)
	}
	down.Store(true)
	for n := range 20 {
		for _, e := range deliver(t, s, messages("bad", 10, 30)...) {
			if e == nil || e.Class != broker.ClassOutage || e.Destination != "bad" {
				t.Fatalf("round %d of an endpoint that is down: %v", n, e)
			}
		}
	}
}

// TestBreaker: a failing endpoint gets a few requests and then a pause.
func TestBreaker(t *testing.T) {
	var seen atomic.Int64
	var up atomic.Bool
	bad := serve(t, "bad", func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1); !up.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	bad.Concurrency = 4
	s := newSink(t, nil, good(t), bad)
	began := time.Now()
	for range 20 {
		deliver(t, s, messages("bad", 0, 200)...)
	}
	// On a busy machine the calls last for some of the breaker's pauses.
	if n, most := seen.Load(), 30+int64(16*time.Since(began).Seconds()); n > most {
		t.Errorf("%d requests to an endpoint that is down, want at most %d", n, most)
	}
	up.Store(true)
	open := messages("bad", 0, 200)
	for end := time.Now().Add(time.Minute); len(open) > 0; {
		var left []postrider.Message
		for i, e := range deliver(t, s, open...) {
			if e != nil {
				left = append(left, open[i])
			}
		}
		if open = left; time.Now().After(end) {
			t.Fatalf("%d messages are not accepted after the endpoint is up", len(open))
		}
	}
}

// TestHangingEndpoint: a hanging endpoint delays its own messages only, and gets each
// of them once.
func TestHangingEndpoint(t *testing.T) {
	var seen sync.Map
	var twice atomic.Int64
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	hanging := serve(t, "bad", func(_ http.ResponseWriter, r *http.Request) {
		if _, again := seen.LoadOrStore(r.Header.Get("webhook-id"), true); again {
			twice.Add(1)
		}
		<-released
	})
	t.Cleanup(release)
	hanging.Timeout = time.Minute
	s := newSink(t, &httpbroker.SinkOptions{Patience: 4 * time.Second}, good(t), hanging)
	msgs := append(messages("bad", 0, 3), messages("good", 10, 100)...)
	msgs[50].Key = "k1" // behind one of the hanging endpoint
	for round := range 4 {
		began := time.Now()
		errs := deliver(t, s, msgs...)
		if took := time.Since(began); took > 30*time.Second { // the endpoint hangs for longer
			t.Fatalf("round %d took %v", round, took)
		}
		for i, e := range errs {
			switch waits := i < 3 || i == 50; {
			case waits && (e == nil || e.Destination != "bad" || e.Class != broker.ClassOutage && e.Class != broker.ClassThrottled):
				t.Fatalf("round %d: message %d is answered %v", round, i, e)
			case !waits && e != nil:
				t.Fatalf("round %d: message %d has nothing to do with it: %v", round, i, e)
			}
		}
	}
	release()
	open := msgs[:3]
	for end := time.Now().Add(time.Minute); len(open) > 0 && time.Now().Before(end); {
		var left []postrider.Message
		for i, e := range deliver(t, s, open...) {
			if e != nil {
				left = append(left, open[i])
			}
		}
		open = left
	}
	if len(open) > 0 || twice.Load() > 0 {
		t.Errorf("%d messages not accepted, %d sent twice although the answer came", len(open), twice.Load())
	}
}

// TestHangingKeepsNothing: the caller's memory is not read after a call has ended, even
// while its request continues.
func TestHangingKeepsNothing(t *testing.T) {
	got := make(chan []byte, 1)
	begin, released := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	slow := serve(t, "bad", func(_ http.ResponseWriter, r *http.Request) {
		close(begin)
		<-released
		data, _ := io.ReadAll(r.Body)
		got <- data
	})
	t.Cleanup(release)
	s := newSink(t, &httpbroker.SinkOptions{Patience: 100 * time.Millisecond}, good(t), slow)
	msgs := messages("bad", 0, 1)
	msgs[0].Payload = []byte(strings.Repeat("payload ", 1<<20))
	if e := deliver(t, s, msgs...)[0]; e == nil {
		t.Fatal("no answer, and it is acknowledged")
	}
	<-begin
	clear(msgs[0].Payload)
	release()
	if data := <-got; string(data) != strings.Repeat("payload ", 1<<20) {
		t.Errorf("%d bytes arrived, not those that were given", len(data))
	}
}

// TestLateBytes: requests whose calls have ended hold no more payload than MaxLateBytes: a
// request above it is aborted, and its message sent again.
//
// Promises: G
func TestLateBytes(t *testing.T) {
	var kept atomic.Int64
	brokenOff := make(chan struct{}, 1000)
	hanging := serve(t, "bad", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("postrider-key") == "k0" {
			kept.Add(1)
		}
		<-r.Context().Done()
		if r.Header.Get("postrider-key") == "k1" {
			brokenOff <- struct{}{}
		}
	})
	hanging.Timeout = time.Minute
	s := newSink(t, &httpbroker.SinkOptions{Patience: 100 * time.Millisecond, MaxLateBytes: 1000}, good(t), hanging)
	until := func(n, size int, done func(e *broker.Error) bool) {
		t.Helper()
		msgs := messages("bad", n, 1)
		msgs[0].Payload = make([]byte, size)
		for end := time.Now().Add(time.Minute); ; {
			e := deliver(t, s, msgs...)[0]
			if e == nil || time.Now().After(end) {
				t.Fatal("no answer came, and", e)
			}
			if done(e) {
				return
			}
		}
	}
	until(0, 900, func(e *broker.Error) bool { return e.Code == "SLOW" && kept.Load() > 0 })
	until(1, 200, func(e *broker.Error) bool { return e.Class == broker.ClassUnknown && len(brokenOff) > 0 })
	until(0, 900, func(*broker.Error) bool { return true })
	if n := kept.Load(); n != 1 {
		t.Errorf("the request that is within the limit was made %d times", n)
	}
}

// TestLateAnswersLeaveRoom: answers that arrived after their calls hold no payload, used or
// not. So the requests of a slow endpoint continue, and are made once.
//
// Promises: D, G
func TestLateAnswersLeaveRoom(t *testing.T) {
	for name, status := range map[string]int{"accepted": http.StatusOK, "failed": http.StatusInternalServerError} {
		t.Run(name, func(t *testing.T) {
			hanging, answer := held(t, "hanging", status)
			slow, accept := held(t, "slow", http.StatusOK)
			s := newSink(t, &httpbroker.SinkOptions{Patience: 100 * time.Millisecond, MaxLateBytes: 1000}, hanging.Endpoint, slow.Endpoint)
			unasked, asked := messages("hanging", 0, 1)[0], messages("slow", 1, 1)[0]
			unasked.Payload, asked.Payload = make([]byte, 900), make([]byte, 900)
			soon(t, "the hanging endpoint's request continues", func() bool {
				e := deliver(t, s, unasked)[0]
				return e != nil && e.Code == "SLOW"
			})
			answer()
			soon(t, "the answer holds no payload", func() bool { return s.LateBytes() == 0 })
			soon(t, "the slow endpoint's request continues", func() bool {
				e := deliver(t, s, asked)[0]
				return e != nil && e.Code == "SLOW"
			})
			accept()
			soon(t, "the slow endpoint's message is accepted", func() bool { return deliver(t, s, asked)[0] == nil })
			if n := slow.requests.Load(); n != 1 {
				t.Errorf("the slow endpoint got %d requests", n)
			}
		})
	}
}

// soon waits for a condition, at most a minute.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// holding is an endpoint that answers no request before it is released.
type holding struct {
	httpbroker.Endpoint
	requests atomic.Int64
}

func held(t *testing.T, topic string, status int) (h *holding, release func()) {
	t.Helper()
	h = &holding{}
	released := make(chan struct{})
	h.Endpoint = serve(t, topic, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		h.requests.Add(1)
		select {
		case <-released:
		case <-r.Context().Done():
		}
		w.WriteHeader(status)
	})
	h.Timeout = time.Minute
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	return h, release
}

func TestGoneStops(t *testing.T) {
	var seen atomic.Int64
	bad := serve(t, "bad", func(w http.ResponseWriter, _ *http.Request) { seen.Add(1); w.WriteHeader(http.StatusGone) })
	s := newSink(t, nil, good(t), bad)
	for range 5 {
		e := deliver(t, s, messages("bad", 0, 1)...)[0]
		if e == nil || e.Class != broker.ClassOutage || e.Code != "HTTP_410" || !strings.Contains(e.Error(), "until a person") {
			t.Fatal(e)
		}
	}
	if n := seen.Load(); n != 1 {
		t.Errorf("%d requests to an endpoint that is gone", n)
	}
	if err := s.SetEndpoints([]httpbroker.Endpoint{good(t), bad}); err != nil {
		t.Fatal(err)
	}
	if deliver(t, s, messages("bad", 0, 1)...); seen.Load() != 2 {
		t.Error("the endpoint is not tried after a person has changed the endpoints")
	}
}

// TestStopLasts: an endpoint that answered 410 is reported until the store has recorded
// it. A stopped endpoint gets nothing, even after SetEndpoints, until it is resumed.
func TestStopLasts(t *testing.T) {
	var seen atomic.Int64
	var status atomic.Int64
	status.Store(http.StatusGone)
	bad := serve(t, "bad", func(w http.ResponseWriter, _ *http.Request) { seen.Add(1); w.WriteHeader(int(status.Load())) })
	s := newSink(t, nil, good(t), bad)
	if g := s.Gone(); g != nil {
		t.Fatal(g)
	}
	deliver(t, s, messages("bad", 0, 1)...)
	s.Stop(nil) // a heartbeat that began before
	if g := s.Gone(); len(g) != 1 || g[0].Destination != "bad" || g[0].Reason == "" {
		t.Fatalf("gone: %+v", g)
	}
	s.Stop([]string{"bad", "unknown"})
	if g := s.Gone(); g != nil {
		t.Errorf("told again: %+v", g)
	}
	status.Store(http.StatusOK)
	for range 2 {
		if e := deliver(t, s, messages("bad", 0, 1)...)[0]; e == nil || e.Class != broker.ClassOutage || !strings.Contains(e.Error(), `postrider resume --endpoint "bad"`) {
			t.Fatal(e)
		}
		if err := s.SetEndpoints([]httpbroker.Endpoint{good(t), bad}); err != nil {
			t.Fatal(err)
		}
	}
	if n := seen.Load(); n != 1 {
		t.Errorf("%d requests to an endpoint that is stopped", n)
	}
	s.Stop([]string{"unknown"})
	if e := deliver(t, s, messages("bad", 0, 1)...)[0]; e != nil || seen.Load() != 2 {
		t.Errorf("after it was resumed: %v, %d requests", e, seen.Load())
	}
}

func TestRetryAfterIsKept(t *testing.T) {
	var seen atomic.Int64
	s := newSink(t, nil, good(t), serve(t, "bad", func(w http.ResponseWriter, _ *http.Request) {
		if seen.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	began := time.Now()
	for end := began.Add(time.Minute); ; {
		e := deliver(t, s, messages("bad", 0, 1)...)[0]
		if e == nil {
			break
		}
		if e.Class != broker.ClassThrottled || time.Now().After(end) {
			t.Fatal(e)
		}
	}
	if took := time.Since(began); took < 900*time.Millisecond || seen.Load() != 2 {
		t.Errorf("%d requests within %v", seen.Load(), took)
	}
}

// TestTransportRepeatsNothing: net/http repeats requests with an Idempotency-Key by itself
// when a connection breaks. The sink must prevent that.
func TestTransportRepeatsNothing(t *testing.T) {
	var seen atomic.Int64
	bad := serve(t, "bad", func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) == 1 {
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	s := newSink(t, nil, good(t), bad)
	for i, payload := range []string{"", "{}"} {
		seen.Store(0)
		for n := range 2 { // the second on the first one's connection
			msgs := messages("bad", 10*i+n, 1)
			msgs[0].Payload, msgs[0].Headers = []byte(payload), map[string]string{"idempotency-key": "7", "x-idempotency-key": "7"}
			if e := deliver(t, s, msgs...)[0]; n == 1 && (e == nil || e.Class != broker.ClassOutage || e.Code != "NO_ANSWER") {
				t.Errorf("payload %q: %v", payload, e)
			}
		}
		if n := seen.Load(); n != 2 {
			t.Errorf("payload %q: %d requests for 2 messages", payload, n)
		}
	}
}

// TestEmptyPayload: an empty payload has a Content-Length, for frameworks without chunked
// requests, and is signed like any other.
func TestEmptyPayload(t *testing.T) {
	var length atomic.Int64
	var encoding atomic.Value
	to := serve(t, "to", func(_ http.ResponseWriter, r *http.Request) {
		length.Store(r.ContentLength)
		encoding.Store(fmt.Sprint(r.TransferEncoding))
	})
	s := newSink(t, nil, to)
	msgs := messages("to", 1, 2)
	msgs[1].Payload = nil
	for _, m := range msgs {
		if e := deliver(t, s, m)[0]; e != nil {
			t.Fatal(e)
		}
		if int(length.Load()) != len(m.Payload) || encoding.Load() != "[]" {
			t.Errorf("payload of %d bytes: content length %d, transfer encoding %v", len(m.Payload), length.Load(), encoding.Load())
		}
	}
}

// TestHostileAnswers: an answer counts once its status has arrived; its body delays no other message.
func TestHostileAnswers(t *testing.T) {
	endless := serve(t, "endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	drip := serve(t, "drip", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	headers := serve(t, "headers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 1<<20))
	})
	garbage := serve(t, "garbage", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = conn.Write([]byte("SSH-2.0-geheim\r\n"))
			conn.Close()
		}
	})
	s := newSink(t, nil, endless, drip, headers, garbage)
	began := time.Now()
	for topic, want := range map[string]string{"endless": "", "drip": "", "headers": "NO_ANSWER", "garbage": "NO_ANSWER"} {
		e := deliver(t, s, messages(topic, 0, 1)...)[0]
		switch {
		case want == "" && e != nil, want != "" && (e == nil || e.Code != want):
			t.Errorf("%s: %v", topic, e)
		case e != nil && strings.Contains(e.Error(), "geheim"):
			t.Errorf("%s: the error repeats the answer: %v", topic, e)
		}
	}
	if took := time.Since(began); took > 12*time.Second { // less than a request may take
		t.Errorf("the answers took %v", took)
	}
}

func TestLimits(t *testing.T) {
	const limit = 3
	var flying, most, seen atomic.Int64
	reached := make(chan struct{}) // no request is answered before as many as allowed are in flight
	slow := serve(t, "slow", func(http.ResponseWriter, *http.Request) {
		if n := seen.Add(1); n == limit {
			close(reached)
		}
		if n := flying.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-reached
		<-time.After(5 * time.Millisecond)
		flying.Add(-1)
	})
	slow.Concurrency, slow.MaxMessageBytes = limit, 1000
	paced := serve(t, "paced*", func(http.ResponseWriter, *http.Request) {})
	paced.Name, paced.Topics, paced.Rate, paced.Concurrency = "paced", []string{"paced*"}, 20, 8
	s := newSink(t, &httpbroker.SinkOptions{Patience: 8 * time.Second}, slow, paced)
	for _, e := range deliver(t, s, messages("slow", 0, 60)...) {
		if e != nil {
			t.Fatal(e)
		}
	}
	if n := most.Load(); n != limit {
		t.Errorf("%d requests at once, the limit is %d", n, limit)
	}
	large := messages("slow", 0, 1)
	large[0].Payload = make([]byte, 1001)
	seen.Store(0)
	if e := deliver(t, s, large...)[0]; e.Class != broker.ClassRejected || seen.Load() != 0 || !strings.Contains(e.Error(), "1001 bytes, above its max-message-bytes of 1000") {
		t.Errorf("a large message: %v, %d requests", e, seen.Load())
	}
	began := time.Now()
	for _, e := range deliver(t, s, messages("paced/7", 100, 32)...) {
		if e != nil {
			t.Fatal(e)
		}
	}
	if took := time.Since(began); took < 550*time.Millisecond { // 20 at once, 12 more
		t.Errorf("32 requests at 20 per second took %v", took)
	}
}
