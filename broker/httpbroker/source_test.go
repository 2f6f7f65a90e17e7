package httpbroker_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/httpbroker"
)

func receiver(t *testing.T, opts httpbroker.SourceOptions) (*httpbroker.Source, string) {
	t.Helper()
	r, err := httpbroker.NewSource(&opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	t.Cleanup(func() { r.Close(); server.Close() })
	return r, server.URL
}

// post sends a signed webhook; change may alter the request.
func post(t *testing.T, url, id, body string, change func(*http.Request)) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := httpbroker.Sign(secrets(t, secret), id, now, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("webhook-id", id)
	req.Header.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	req.Header.Set("webhook-signature", signature)
	if change != nil {
		change(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return resp, err
}

// Promises: C
func TestReceiverRefuses(t *testing.T) {
	r, url := receiver(t, httpbroker.SourceOptions{Secrets: httpbroker.Static(vectorSecret + " " + secret), MaxMessageBytes: 1000})
	old := strconv.FormatInt(time.Now().Add(-6*time.Minute).Unix(), 10)
	for _, c := range []struct {
		name   string
		body   string
		status int
		change func(*http.Request)
	}{
		{"no signature", "{}", 401, func(q *http.Request) { q.Header.Del("webhook-signature") }},
		{"other id", "{}", 401, func(q *http.Request) { q.Header.Set("webhook-id", "other") }},
		{"no id", "{}", 401, func(q *http.Request) { q.Header.Del("webhook-id") }},
		{"too old", "{}", 401, func(q *http.Request) {
			q.Header.Set("webhook-timestamp", old)
			at, _ := strconv.ParseInt(old, 10, 64)
			signature, _ := httpbroker.Sign(secrets(t, secret), "id", time.Unix(at, 0), []byte("{}"))
			q.Header.Set("webhook-signature", signature)
		}},
		{"other body", "{}", 401, func(q *http.Request) { q.Body, q.ContentLength = io.NopCloser(strings.NewReader("[]")), 2 }},
		{"too large", strings.Repeat("x", 1001), 413, nil},
		{"not posted", "", 405, func(q *http.Request) { q.Method = http.MethodPut }},
	} {
		resp, err := post(t, url, "id", c.body, c.change)
		if err != nil || resp.StatusCode != c.status {
			t.Errorf("%s: %v, %v", c.name, resp, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if ds, err := r.Receive(ctx, 1); err == nil {
		t.Errorf("the consumer got %+v", ds)
	}
	for _, opts := range []httpbroker.SourceOptions{{}, {Secrets: httpbroker.Static(secret), Unsigned: true}, {Secrets: httpbroker.Static("x")}} {
		if _, err := httpbroker.NewSource(&opts); err == nil {
			t.Error("a receiver of everything is made without being asked for")
		}
	}
}

// TestReceiverTakesTheSignedID: an unsigned id cannot make a duplicate look like a new message.
func TestReceiverTakesTheSignedID(t *testing.T) {
	r, url := receiver(t, httpbroker.SourceOptions{Secrets: httpbroker.Static(secret)})
	const one, two = "01890a5d-ac96-774b-8cce-000000000001", "01890a5d-ac96-774b-8cce-000000000002"
	got := map[string]string{}
	for _, c := range []struct{ name, id, header string }{
		{"ours", one, one}, {"forged", one, two}, {"foreign", "msg_1", ""}, {"foreign again", "msg_1", two},
	} {
		answered := make(chan int, 1)
		go func() {
			resp, err := post(t, url, c.id, "{}", func(q *http.Request) { q.Header.Set("postrider-id", c.header) })
			if err == nil {
				answered <- resp.StatusCode
			}
		}()
		ds, err := r.Receive(t.Context(), 10)
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		got[c.name] = ds[0].Message.ID
		if err := r.Settle(t.Context(), []broker.Verdict{{Delivery: ds[0], Ack: true}}); err != nil {
			t.Fatal(err)
		}
		if status := <-answered; status != http.StatusNoContent {
			t.Errorf("%s: answered %d", c.name, status)
		}
	}
	if got["ours"] != one || got["forged"] != one || got["foreign"] != got["foreign again"] || got["foreign"] == two || got["foreign"] == "" {
		t.Errorf("ids %v", got)
	}
}

// TestReceiverJoinsRepeats: a message that is sent again while the consumer works on it is delivered once.
func TestReceiverJoinsRepeats(t *testing.T) {
	r, url := receiver(t, httpbroker.SourceOptions{Secrets: httpbroker.Static(secret), MaxHeld: 3})
	answers := make(chan int, 10)
	send := func(id, body string) {
		go func() {
			resp, err := post(t, url, id, body, nil)
			if err == nil {
				answers <- resp.StatusCode
			}
		}()
	}
	send("a", "1")
	ds, err := r.Receive(t.Context(), 10)
	if err != nil || len(ds) != 1 {
		t.Fatal(ds, err)
	}
	send("a", "2")
	if status := <-answers; status != http.StatusConflict {
		t.Errorf("another payload under the same id is answered %d", status)
	}
	send("a", "1")
	send("a", "1")
	for r.Waiting() < 3 {
		<-time.After(time.Millisecond)
	}
	send("b", "1")
	if status := <-answers; status != http.StatusTooManyRequests {
		t.Errorf("one request too many is answered %d", status)
	}
	if err := r.Settle(t.Context(), []broker.Verdict{{Delivery: ds[0], Ack: true}}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if status := <-answers; status != http.StatusNoContent {
			t.Errorf("answered %d", status)
		}
	}
}

// TestReceiverForgetsWhoHasGone: abandoned messages are not kept while the consumer takes
// nothing: senders may retry for hours.
//
// Promises: G
func TestReceiverForgetsWhoHasGone(t *testing.T) {
	r, url := receiver(t, httpbroker.SourceOptions{Secrets: httpbroker.Static(secret)})
	for n := range 20 {
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan struct{})
		id := fmt.Sprint("id", n%3)
		go func() {
			defer close(gone)
			if resp, err := post(t, url, id, "{}", func(q *http.Request) { *q = *q.WithContext(ctx) }); err == nil {
				t.Errorf("answered %d, and nobody has seen it", resp.StatusCode)
			}
		}()
		for !r.Has(id) {
			<-time.After(time.Millisecond)
		}
		leave()
		<-gone
		for r.Waiting() > 0 {
			<-time.After(time.Millisecond)
		}
	}
	if n := r.Queued(); n > 0 {
		t.Errorf("%d messages are kept that nobody waits for", n)
	}
}

// TestReceiverCloses: the sender is told of the shutdown, and to send again later.
func TestReceiverCloses(t *testing.T) {
	r, url := receiver(t, httpbroker.SourceOptions{Secrets: httpbroker.Static(secret)})
	answers := make(chan *http.Response, 2)
	for n := range 2 {
		go func() {
			resp, err := post(t, url, fmt.Sprint("id", n), "{}", nil)
			if err == nil {
				answers <- resp
			}
		}()
	}
	ds, err := r.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for r.Waiting() < 2 {
		<-time.After(time.Millisecond)
	}
	r.Close()
	for range 2 {
		if resp := <-answers; resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("answered %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
		}
	}
	if err := r.Settle(t.Context(), []broker.Verdict{{Delivery: ds[0], Ack: true}}); !errors.Is(err, httpbroker.ErrClosed) {
		t.Errorf("settled after the sender was told to come again: %v", err)
	}
	if resp, err := post(t, url, "x", "{}", nil); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestSinkToReceiver: sink and source work together. A message given back is sent
// again, in order, and the consumer's acknowledgement is the sink's.
func TestSinkToReceiver(t *testing.T) {
	r, url := receiver(t, httpbroker.SourceOptions{Secrets: httpbroker.Static(secret)})
	s := newSink(t, nil, endpoint(url), httpbroker.Endpoint{Name: "other", URL: "https://example.com", Unsigned: true, Topics: []string{"none"}})
	msgs := messages("t", 0, 6)
	for i := range msgs {
		msgs[i].Key, msgs[i].Version = "ключ", int64(i+1)
	}
	seen := make(chan int64, 100)
	go func() {
		first := true
		for {
			ds, err := r.Receive(t.Context(), 10)
			if err != nil {
				return
			}
			for _, d := range ds {
				seen <- d.Message.Version
				_ = r.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: d.Message.Version != 3 || !first}})
				first = first && d.Message.Version != 3
			}
		}
	}()
	open := msgs
	for end := time.Now().Add(time.Minute); len(open) > 0 && time.Now().Before(end); {
		n := 0
		for _, e := range deliver(t, s, open...) {
			if e != nil {
				break
			}
			n++
		}
		open = open[n:]
	}
	close(seen)
	var order []int64
	for v := range seen {
		order = append(order, v)
	}
	if fmt.Sprint(order) != "[1 2 3 3 4 5 6]" {
		t.Errorf("received %v", order)
	}
}

// TestSlowStrangersKeepNobodyOut: slow unsigned bodies take all places for reading, and
// the sender's webhook is accepted nevertheless.
//
// Promises: G
func TestSlowStrangersKeepNobodyOut(t *testing.T) {
	const most = 4
	r, url := receiver(t, httpbroker.SourceOptions{Secrets: httpbroker.Static(secret), MaxHeld: most})
	for range most {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		// The server sends this when it reads the body: the request has its place.
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
			t.Fatalf("%q, %v", line, err)
		}
	}
	status := make(chan int, 1)
	go func() {
		resp, err := post(t, url, "id", "{}", nil)
		if err != nil {
			status <- 0
			return
		}
		status <- resp.StatusCode
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	received := make(chan []broker.Delivery, 1)
	go func() {
		ds, _ := r.Receive(ctx, 1)
		received <- ds
	}()
	select {
	case ds := <-received:
		if len(ds) != 1 {
			t.Fatalf("%d deliveries", len(ds))
		}
		if err := r.Settle(ctx, []broker.Verdict{{Delivery: ds[0], Ack: true}}); err != nil {
			t.Fatal(err)
		}
		if got := <-status; got != http.StatusNoContent {
			t.Errorf("the sender is answered %d", got)
		}
	case got := <-status:
		t.Fatalf("the sender is answered %d before its message was received", got)
	}
}

// TestOpenSource: a URL without secrets or unsigned opens no source, and
// Close ends the server that OpenSource started.
func TestOpenSource(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1:0", "https://127.0.0.1:0#unsigned=true", "http://#unsigned=true", "http://192.0.2.1:0#unsigned=true", "ftp://127.0.0.1:0"} {
		if src, err := httpbroker.OpenSource(url, nil); err == nil {
			src.Close()
			t.Errorf("%s opens a source", url)
		}
	}
	src, err := httpbroker.OpenSource("http://127.0.0.1:0", &httpbroker.SourceOptions{Unsigned: true})
	if err != nil {
		t.Fatal(err)
	}
	src.Close()
	if _, err := src.Receive(t.Context(), 1); !errors.Is(err, httpbroker.ErrClosed) {
		t.Errorf("Receive after Close: %v", err)
	}
}
