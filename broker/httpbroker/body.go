package httpbroker

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

var errBodyGone = errors.New("the call has ended")

// body is a request's payload. The caller of Deliver owns the memory until own copies
// it or drop ends its use: the transport may still read while Deliver returns.
type body struct {
	mu   sync.Mutex
	data []byte
	gone bool
}

// own makes the body independent of the caller's memory.
func (b *body) own() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = bytes.Clone(b.data)
}

// drop ends all reading.
func (b *body) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data, b.gone = nil, true
}

// with calls fn with the payload and returns true, or returns false after drop.
func (b *body) with(fn func(data []byte)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.gone {
		fn(b.data)
	}
	return !b.gone
}

// maxCopied is the largest payload that is copied for each request: the transport sends
// a body of a type that it knows in one write with the headers.
const maxCopied = 64 << 10

func (b *body) reader() io.ReadCloser {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.gone && len(b.data) <= maxCopied {
		return io.NopCloser(bytes.NewReader(bytes.Clone(b.data)))
	}
	return &bodyReader{body: b}
}

// bodyReader reads large payloads without a copy.
type bodyReader struct {
	body *body
	at   int
}

func (r *bodyReader) Read(p []byte) (int, error) {
	b := r.body
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return 0, errBodyGone
	}
	if r.at >= len(b.data) {
		return 0, io.EOF
	}
	n := copy(p, b.data[r.at:])
	r.at += n
	return n, nil
}

func (r *bodyReader) Close() error { return nil }
