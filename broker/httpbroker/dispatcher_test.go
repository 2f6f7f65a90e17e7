package httpbroker_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/internal/faultproxy"
)

// dispatcher plays the sender of webhooks for the source's cases: it posts the recorder's
// requests, in their order, and repeats those that were not answered with 2xx. Without
// faults it does not wait for a key's last message before it sends the next.
type dispatcher struct {
	r      *recorder
	client *http.Client

	mu       sync.Mutex
	oneByOne bool // per key, as the sink does it
	ports    []*port
	state    map[string]*posted // by webhook-id
}

type port struct {
	url string
	rcv *httpbroker.Source
}

type posted struct {
	flying, settled bool
	due             time.Time
}

// open starts a receiver, behind a proxy if it is to have faults.
func (d *dispatcher) open(t *testing.T, proxied bool) (*httpbroker.Source, *httptest.Server, *faultproxy.Proxy, func()) {
	t.Helper()
	rcv, err := httpbroker.NewSource(&httpbroker.SourceOptions{Secrets: httpbroker.Static(secret), MaxHeld: 4000, Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(rcv)
	p := &port{url: server.URL, rcv: rcv}
	var proxy *faultproxy.Proxy
	if proxied {
		if proxy, err = faultproxy.New(server.Listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { proxy.Close() })
		p.url = "http://" + proxy.Addr()
	}
	d.mu.Lock()
	d.oneByOne = proxied // a broken line loses some requests in flight, in no order
	d.ports = append(d.ports, p)
	d.mu.Unlock()
	return rcv, server, proxy, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for i := range d.ports {
			if d.ports[i] == p {
				d.ports = append(d.ports[:i], d.ports[i+1:]...)
				break
			}
		}
	}
}

func (d *dispatcher) run(ctx context.Context) {
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-pace.C:
			d.round(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// round posts all requests that may be sent now to the first receiver.
func (d *dispatcher) round(ctx context.Context) {
	d.mu.Lock()
	var to *port
	if len(d.ports) > 0 {
		to = d.ports[0]
	}
	d.mu.Unlock()
	if to == nil {
		return
	}
	held := map[string]bool{}
	for _, req := range d.r.requests() {
		id, key := req.header.Get("webhook-id"), req.header.Get("postrider-key")
		d.mu.Lock()
		st := d.state[id]
		if st == nil {
			st = &posted{}
			d.state[id] = st
		}
		send := !st.flying && !st.settled && !held[key] && time.Now().After(st.due)
		if !st.settled && (d.oneByOne || !st.flying && !send) {
			held[key] = true
		}
		st.flying = st.flying || send
		d.mu.Unlock()
		if send {
			d.post(ctx, to, id, req, st)
		}
	}
}

// post returns when the receiver holds the request, or has answered it.
func (d *dispatcher) post(ctx context.Context, to *port, id string, r request, st *posted) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		ok, after := d.send(ctx, to.url, id, r)
		d.mu.Lock()
		defer d.mu.Unlock()
		st.flying, st.settled, st.due = false, ok, time.Now().Add(after)
	}()
	for !to.rcv.Has(id) {
		select {
		case <-done:
			return
		case <-time.After(100 * time.Microsecond):
		}
	}
}

func (d *dispatcher) send(ctx context.Context, url, id string, r request) (ok bool, after time.Duration) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(r.payload))
	if err != nil {
		return false, 0
	}
	req.Header = r.header.Clone()
	at := strconv.FormatInt(time.Now().Unix(), 10)
	key, _ := base64.StdEncoding.DecodeString(secret[len("whsec_"):])
	mac := hmac.New(sha256.New, key)
	mac.Write(append([]byte(id+"."+at+"."), r.payload...))
	req.Header.Set("webhook-timestamp", at)
	req.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	resp, err := d.client.Do(req.WithContext(ctx))
	if err != nil {
		return false, 20 * time.Millisecond
	}
	resp.Body.Close()
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	return resp.StatusCode/100 == 2, time.Duration(seconds) * time.Second
}

// receivers has the ways in which an environment opens a source.
type receivers struct {
	source, mortal func(context.Context) (broker.Source, func(), error)
	flaky          func(context.Context) (broker.Source, brokertest.Faults, func(), error)
}

// sources returns receivers with a dispatcher as their sender.
func sources(t *testing.T, r *recorder) receivers {
	t.Helper()
	d := &dispatcher{r: r, state: map[string]*posted{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	started := sync.OnceFunc(func() {
		go func() { defer close(ended); d.run(ctx) }()
		t.Cleanup(func() { cancel(); <-ended; d.client.CloseIdleConnections() })
	})
	open := func(proxied bool, end func(*httpbroker.Source, *httptest.Server)) (broker.Source, brokertest.Faults, func(), error) {
		rcv, server, faults, remove := d.open(t, proxied)
		started()
		return rcv, faults, sync.OnceFunc(func() { remove(); end(rcv, server) }), nil
	}
	orderly := func(rcv *httpbroker.Source, server *httptest.Server) { rcv.Close(); server.Close() }
	killed := func(rcv *httpbroker.Source, server *httptest.Server) {
		server.CloseClientConnections() // no request is answered
		orderly(rcv, server)
	}
	return receivers{
		source: func(context.Context) (broker.Source, func(), error) {
			src, _, end, err := open(false, orderly)
			return src, end, err
		},
		mortal: func(context.Context) (broker.Source, func(), error) {
			src, _, end, err := open(false, killed)
			return src, end, err
		},
		flaky: func(context.Context) (broker.Source, brokertest.Faults, func(), error) { return open(true, killed) },
	}
}
