package inboxhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// answer is an http.ResponseWriter that holds the answer back, and its stored
// form: a line of JSON and the body.
type answer struct {
	Fingerprint string      `json:"fingerprint"`
	Status      int         `json:"status"`
	Fields      http.Header `json:"header"`

	body   []byte
	limit  int
	header http.Header // the handler's, which it may still change after WriteHeader
	err    error
}

func newAnswer(print string, limit int) *answer {
	return &answer{Fingerprint: print, limit: limit, header: http.Header{}}
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.Status != 0 || status < 200 { // informational answers are dropped
		return
	}
	a.Status, a.Fields = status, a.header.Clone()
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if len(a.body)+len(p) > a.limit {
		a.err = a.tooLarge()
		return 0, a.err
	}
	a.body = append(a.body, p...)
	return len(p), nil
}

func (a *answer) tooLarge() error {
	return fmt.Errorf("the answer is larger than the %d bytes that are kept: raise Options.MaxAnswer, or answer with a link", a.limit)
}

// end closes the answer. It removes headers of a single delivery, and
// cookies, which are secrets.
func (a *answer) end() error {
	a.WriteHeader(http.StatusOK)
	for _, name := range []string{"Connection", "Keep-Alive", "Transfer-Encoding", "Trailer", "Upgrade", "Date", "Content-Length"} {
		a.Fields.Del(name)
	}
	return a.err
}

// encode returns the stored form.
func (a *answer) encode() ([]byte, error) {
	kept := *a
	kept.Fields = a.Fields.Clone()
	kept.Fields.Del("Set-Cookie")
	line, err := json.Marshal(kept)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	if len(line)+1+len(a.body) > a.limit {
		return nil, a.tooLarge()
	}
	return slices.Concat(line, []byte("\n"), a.body), nil
}

func decode(kept []byte) (*answer, error) {
	line, body, found := bytes.Cut(kept, []byte("\n")) // JSON has no line feed of its own
	var a answer
	if err := json.Unmarshal(line, &a); err != nil || !found || a.Status < 200 || a.Status > 999 {
		return nil, errors.Join(errors.New("the result stored with the key is not an HTTP answer: use a consumer name that nothing else uses"), err)
	}
	a.body = body
	return &a, nil
}

func (a *answer) send(w http.ResponseWriter, replayed bool) {
	to := w.Header()
	for name, values := range a.Fields {
		to[name] = values
	}
	if replayed {
		to.Set(ReplayedHeader, "true")
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.body) // fails if the client has gone, or the status allows no body
}
