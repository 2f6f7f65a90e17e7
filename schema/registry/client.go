package registry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/postrider/postrider/envelope"
)

// Options are the options of a [Client]. Nil options are the defaults.
type Options struct {
	// Timeout bounds each request. 0: 5 s.
	Timeout time.Duration
	// Cache is a file for the ids that were found, for a start while the registry is down;
	// "" for none. The URL's parameter cache takes precedence.
	Cache  string
	Logger *slog.Logger // of a cache file that cannot be used; nil: silent
}

// Client asks one registry. It keeps the ids of 10,000 schemas for as long as it lives, and an answer
// that something is unknown for ten seconds. It is safe for concurrent use.
type Client struct {
	sr      *sr.Client
	place   string
	timeout time.Duration
	most    int // of known
	disk    *disk

	held atomic.Pointer[map[string]envelope.Schema] // by topic, while the registry is down; replaced as a whole, under mu; nil: none

	mu      sync.RWMutex
	known   map[envelope.Schema]*entry // here and below without the record
	unknown map[envelope.Schema]refusal
	flights map[envelope.Schema]*flight
}

// entry is what is known of a schema. It never changes.
type entry struct {
	schema   envelope.Schema            // without the record
	frame    *envelope.Frame            // nil: each record has its own
	records  map[string]*envelope.Frame // of Protobuf, by full name
	protobuf bool                       // with framing framed: an index follows the id
}

// of returns the frame of a record; nil: the Protobuf schema has several messages and not this one.
func (e *entry) of(record string) *envelope.Frame {
	if len(e.records) > 0 {
		if f := e.records[record]; f != nil {
			return f
		}
	}
	return e.frame
}

// refusal is the cached answer that something is unknown.
type refusal struct {
	err   error
	until time.Time
}

const (
	refusalFor   = 10 * time.Second
	refusalsMost = 1000
	knownMost    = 10_000
	answerMost   = 4 << 20 // bytes of an answer
)

// flight is a question that is being asked.
type flight struct {
	done chan struct{}
	err  error
}

// Open returns a client of the registry at a URL:
//
//	http[s]://[USER[:PASSWORD]@]HOST[:PORT][/PATH][?PARAM=VALUE&...]
//
// with the parameters password-file, password-env, token-file and token-env (read at each
// request), tls-ca, tls-cert, tls-key, and cache. It does no I/O but read the files
// of TLS.
func Open(rawURL string, opts *Options) (*Client, error) {
	if opts == nil {
		opts = &Options{}
	}
	t, err := parseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	c := &Client{place: t.place, timeout: opts.Timeout, most: knownMost, known: map[envelope.Schema]*entry{}, unknown: map[envelope.Schema]refusal{}, flights: map[envelope.Schema]*flight{}}
	if c.timeout <= 0 {
		c.timeout = 5 * time.Second
	}
	if t.cache == "" {
		t.cache = opts.Cache
	}
	c.disk = &disk{file: t.cache, place: t.place, log: opts.Logger}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: t.tls,
		DialContext:         (&net.Dialer{Timeout: c.timeout, KeepAlive: 15 * time.Second, Control: guard}).DialContext,
		TLSHandshakeTimeout: c.timeout, MaxIdleConnsPerHost: 2, IdleConnTimeout: 90 * time.Second,
	}
	httpClient := &http.Client{
		Timeout: c.timeout, Transport: bounded{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.sr, err = sr.NewClient(sr.URLs(t.place), sr.HTTPClient(httpClient), sr.UserAgent("postrider"), sr.PreReq(func(req *http.Request) error {
		switch {
		case t.token != nil:
			token, err := t.token(req.Context())
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+token)
		case t.password != nil:
			password, err := t.password(req.Context())
			if err != nil {
				return err
			}
			req.SetBasicAuth(t.user, password)
		}
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return c, nil
}

// bounded limits the bytes of an answer, which the library reads as a whole.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, answerMost), resp.Body}
	}
	return resp, err
}

// Close ends idle connections.
func (c *Client) Close() {
	if h, ok := c.sr.OptValue("HTTPClient").(*http.Client); ok {
		h.CloseIdleConnections()
	}
}

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
func (b bounded) CloseIdleConnections() {
	if t, ok := b.next.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// Resolve asks for an unknown schema, and then [Client.Router] knows it. Only
// one request for a schema runs at a time. An error is an *[Error], or that of ctx.
func (c *Client) Resolve(ctx context.Context, s envelope.Schema) error {
	record := s.Record
	s.Record = ""
	for ctx.Err() == nil {
		c.mu.Lock()
		if e := c.known[s]; e != nil {
			c.mu.Unlock()
			if s.Framing != envelope.Framed && e.of(record) == nil {
				return &Error{Code: CodeRecord, Registry: c.place, Subject: nameOf(s), Reason: e.lacks(record)}
			}
			return nil
		}
		if r, ok := c.unknown[s]; ok && time.Now().Before(r.until) {
			c.mu.Unlock()
			return r.err
		}
		f := c.flights[s]
		mine := f == nil
		if mine {
			f = &flight{done: make(chan struct{})}
			c.flights[s] = f
		}
		c.mu.Unlock()
		if mine {
			c.fly(ctx, s, f)
		}
		select {
		case <-ctx.Done():
		case <-f.done:
			if f.err != nil {
				return f.err
			}
		}
	}
	return ctx.Err()
}

// lookup returns what is known of a schema, nil for nothing.
func (c *Client) lookup(s envelope.Schema) *entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.known[s]
}

// lacks is the reason for refusing a record that the schema does not have.
func (e *entry) lacks(record string) string {
	names := slices.Sorted(maps.Keys(e.records))
	return fmt.Sprintf("the Protobuf schema has no message %.200q: set record in the route to one of %.500s", record, strings.Join(names, ", "))
}

// nameOf names a schema for people.
func nameOf(s envelope.Schema) string { return s.Subject + " version " + strconv.Itoa(int(s.Version)) }

// fly asks, and notes the answer.
func (c *Client) fly(ctx context.Context, s envelope.Schema, f *flight) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout) // others wait for it too
	e, err := c.ask(limited, s)
	cancel()
	wrong := (*Error)(nil)
	if errors.As(err, &wrong) && wrong.Down() {
		if kept := c.disk.find(s); kept != nil {
			e, err = kept, nil
		}
	} else if err == nil {
		c.disk.keep(s, e)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, s)
	f.err = err
	if errors.As(err, &wrong) && !wrong.Down() {
		if len(c.unknown) >= refusalsMost {
			clear(c.unknown)
		}
		c.unknown[s] = refusal{err, time.Now().Add(refusalFor)}
	}
	if err == nil {
		makeRoom(c.known, s, c.most)
		c.known[s] = e
	}
	close(f.done)
}

// ask asks the registry for one schema.
func (c *Client) ask(ctx context.Context, s envelope.Schema) (*entry, error) {
	if s.Framing == envelope.Framed {
		id := int(uint32(s.Version))
		found, err := c.sr.SchemaByID(ctx, id)
		if err != nil {
			return nil, c.wrong("with the id "+strconv.Itoa(id), err)
		}
		if found.Schema == "" {
			return nil, &Error{Code: CodeUnreachable, Registry: c.place, Subject: "with the id " + strconv.Itoa(id), Reason: "wrong answer: no schema; correct the registry or the proxy before it"}
		}
		return &entry{schema: s, frame: &envelope.Frame{Inside: 5}, protobuf: found.Type == sr.TypeProtobuf}, nil
	}
	name := nameOf(s)
	found, err := c.sr.SchemaByVersion(ctx, s.Subject, int(s.Version))
	if err != nil {
		return nil, c.wrong(name, err)
	}
	if found.ID < 1 || found.Schema.Schema == "" || found.Version != int(s.Version) || found.Subject != "" && found.Subject != s.Subject {
		return nil, &Error{Code: CodeUnreachable, Registry: c.place, Subject: name, Reason: fmt.Sprintf("wrong answer: version %d of %.100q with the id %d; correct the registry or the proxy before it", found.Version, found.Subject, found.ID)}
	}
	var head []byte
	switch {
	case s.Framing == envelope.FrameGUID:
		id, err := guid(found.GUID)
		if err != nil {
			return nil, &Error{Code: CodeGUID, Registry: c.place, Subject: name, Reason: "the registry gives no GUID: use framing id"}
		}
		head = append([]byte{1}, id...)
	case found.ID > 1<<32-1:
		return nil, &Error{Code: CodeRefused, Registry: c.place, Subject: name, Reason: "its id has more than four bytes"}
	default:
		head = binary.BigEndian.AppendUint32([]byte{0}, uint32(found.ID))
	}
	frame := func(index []byte) *envelope.Frame {
		all := slices.Concat(head, index)
		if s.Framing == envelope.FrameGUID {
			return &envelope.Frame{GUID: all}
		}
		return &envelope.Frame{Prefix: all}
	}
	e := &entry{schema: s}
	if found.Type != sr.TypeProtobuf {
		e.frame = frame(nil)
		return e, nil
	}
	indexes, top, err := indexesOf(found.Schema.Schema)
	if err != nil {
		return nil, &Error{Code: CodeRecord, Registry: c.place, Subject: name, Reason: oneLine(err)}
	}
	e.records = make(map[string]*envelope.Frame, len(indexes))
	for record, index := range indexes {
		e.records[record] = frame(appendIndex(nil, index))
	}
	if top == 1 {
		e.frame = frame(appendIndex(nil, []int{0}))
	}
	return e, nil
}
