package private

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// gate stands before an ElasticMQ that writes messages to a database. The server replies to
// a repetition at once, also while the first copy still waits to be written, and a kill then
// loses a message that was acknowledged. The service acknowledges a message only once it is
// stored. So the gate holds such a reply until the first copy is written.
// Replies pass unchanged, and a kill breaks the connections as that of the server does.
type gate struct {
	*testserver.ElasticMQ
	addr   string
	client *http.Client

	mu     sync.Mutex
	writes map[string]*write // by deduplication id
	server *http.Server
	life   context.Context // of the server's process
	end    context.CancelFunc
}

// write is a request's first copies.
type write struct {
	ended  chan struct{}
	stored bool // may be read when ended is closed
}

func newGate(s *testserver.ElasticMQ) (*gate, error) {
	g := &gate{ElasticMQ: s, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}}
	return g, g.open("127.0.0.1:0")
}

// open accepts connections until close.
func (g *gate) open(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("private: gate of ElasticMQ: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.addr, g.writes = l.Addr().String(), make(map[string]*write)
	g.life, g.end = context.WithCancel(context.Background())
	g.server = &http.Server{Handler: g}
	go func(s *http.Server) { _ = s.Serve(l) }(g.server)
	return nil
}

// close breaks all connections and refuses new ones.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end()
	_ = g.server.Close()
	g.client.CloseIdleConnections()
}

func (g *gate) Kill() error {
	err := g.ElasticMQ.Kill()
	g.close()
	return err
}

func (g *gate) Stop() error {
	err := g.ElasticMQ.Stop()
	g.close()
	return err
}

func (g *gate) Restart() error {
	g.close()
	if err := g.ElasticMQ.Restart(); err != nil {
		return err
	}
	return g.open(g.addr)
}

// ServeHTTP forwards a request, and continues when its client has gone: the server
// may have stored its messages.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	g.mu.Lock()
	life := g.life
	var (
		own     = &write{ended: make(chan struct{})}
		earlier []*write
	)
	for _, id := range repeatable(r, body) {
		if before := g.writes[id]; before == nil {
			g.writes[id] = own
		} else if before != own {
			earlier = append(earlier, before)
		}
	}
	g.mu.Unlock()
	reply, status, head, err := g.forward(life, r, body)
	own.stored = err == nil && status == http.StatusOK
	close(own.ended)
	if err == nil && own.stored {
		err = g.written(life, earlier)
	}
	if err != nil {
		panic(http.ErrAbortHandler) // a broken connection, as without a gate
	}
	for name, values := range head {
		w.Header()[name] = values
	}
	w.WriteHeader(status)
	_, _ = w.Write(reply)
}

// repeatable returns the deduplication ids of a request that sends messages.
func repeatable(r *http.Request, body []byte) (ids []string) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS.SendMessage") {
		return nil
	}
	type entry struct{ MessageDeduplicationId string }
	var in struct {
		entry
		QueueUrl string
		Entries  []entry
	}
	if json.Unmarshal(body, &in) != nil {
		return nil
	}
	for _, e := range append(in.Entries, in.entry) {
		if e.MessageDeduplicationId != "" {
			ids = append(ids, in.QueueUrl+" "+e.MessageDeduplicationId)
		}
	}
	return ids
}

func (g *gate) forward(life context.Context, r *http.Request, body []byte) (reply []byte, status int, head http.Header, err error) {
	out, err := http.NewRequestWithContext(life, r.Method, "http://"+g.Addr+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, 0, nil, err
	}
	out.Header, out.Host = r.Header.Clone(), r.Host
	resp, err := g.client.Do(out)
	if err != nil {
		return nil, 0, nil, err
	}
	defer resp.Body.Close()
	reply, err = io.ReadAll(resp.Body)
	return reply, resp.StatusCode, resp.Header, err
}

// written returns when the first copies are in the database. A first request that failed
// may have left a copy that is still to be written.
func (g *gate) written(life context.Context, first []*write) error {
	doubtful := false
	for _, w := range first {
		select {
		case <-w.ended:
		case <-life.Done():
			return life.Err()
		}
		doubtful = doubtful || !w.stored
	}
	if !doubtful {
		return nil
	}
	return g.barrier(life)
}

// barrier returns when everything that the server has accepted is written: it writes in
// the order of acceptance, and replies to a message without a deduplication id when it
// has written that.
func (g *gate) barrier(life context.Context) error {
	for {
		err := g.mark(life)
		if err == nil || life.Err() != nil {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-life.Done():
			return life.Err()
		}
	}
}

func (g *gate) mark(life context.Context) error {
	for _, call := range [][2]string{
		{"CreateQueue", `{"QueueName":"gate"}`},
		{"SendMessage", `{"QueueUrl":"http://` + g.Addr + `/000000000000/gate","MessageBody":"-"}`},
	} {
		req, err := http.NewRequestWithContext(life, http.MethodPost, "http://"+g.Addr+"/", strings.NewReader(call[1]))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/x-amz-json-1.0")
		req.Header.Set("X-Amz-Target", "AmazonSQS."+call[0])
		resp, err := g.client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("private: gate of ElasticMQ: %s: %s", call[0], resp.Status)
		}
	}
	return nil
}
