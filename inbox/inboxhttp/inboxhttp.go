// Package inboxhttp gives an HTTP operation one effect and one answer per
// Idempotency-Key, by the rules of draft-ietf-httpapi-idempotency-key-header-06.
//
//	in := inbox.New(dialect.Postgres, "api", &inbox.Options{Horizon: 24 * time.Hour})
//	h := inboxhttp.New(in, consumer.SQL(db, dialect.Postgres), caller, placeOrder, nil)
//	mux.Handle("POST /orders", h)
//
// The handler works in a transaction that first claims the key and finally stores
// the answer: effect, claim and answer commit together or not at all, and the
// client gets the answer after the commit. So a client may repeat a request after
// any failure: a lost answer, a crash of the service or of the database.
//
//   - The same key again: the first answer, with the header Idempotent-Replayed: true.
//   - The same key with another request: 422.
//   - While the first is still running: 409 with Retry-After. (On SQLite, where
//     one transaction writes at a time, it waits.)
//   - No key, if one is required: 400.
//   - An answer that is not stored (see [Options.Keep]): the transaction is rolled
//     back, the client gets the answer, and the next request with the key runs the
//     handler again.
//
// [inbox.Inbox.Prune] forgets keys: tell your callers the age, at least the inbox's
// horizon, after which a key counts as new.
package inboxhttp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
)

// The header fields.
const (
	KeyHeader      = "Idempotency-Key"     // the caller's key of a request
	ReplayedHeader = "Idempotent-Replayed" // "true" on an answer that was given before
)

// DB runs transactions. consumer.SQL and consumer.Pgx return one.
type DB[Tx any] interface {
	// Transact begins a transaction, runs fn and commits; if fn or the commit
	// fails it rolls back and returns the error. conn is the inbox's view of tx.
	Transact(ctx context.Context, fn func(tx Tx, conn inbox.Conn) error) error
}

// Handler answers a request with an effect in tx, which it must not commit. The
// answer is held back until the commit. On error tx is rolled back and the client
// gets 500, whatever was written.
type Handler[Tx any] func(w http.ResponseWriter, r *http.Request, tx Tx) error

// Options configures a handler. nil means all defaults.
type Options struct {
	// Required refuses requests without a key. Otherwise each of them is handled, in a
	// transaction too.
	Required bool
	// Keep reports by its status whether an answer is final: then the transaction commits
	// and the answer is stored. By default all below 500 are, except 408, 425 and 429.
	Keep func(status int) bool
	// Fingerprint returns a text that is equal for repetitions of a request. By default
	// it is the SHA-256 of method, path, query, Content-Type and body. Change it
	// if repetitions may differ, for instance by a time stamp in the body.
	Fingerprint func(r *http.Request, body []byte) string
	// MaxBody is the largest request body in bytes: 1 MiB. Above it: 413.
	MaxBody int64
	// MaxAnswer is the largest answer in bytes, header included: 256 KiB, at most
	// [inbox.MaxResult]. A larger answer is rolled back and replaced by 500, because it
	// could not be repeated.
	MaxAnswer int
	// RetryAfter is the pause for clients in Retry-After, rounded up to seconds: 1 s.
	RetryAfter time.Duration
	// Documentation is the address of a page about keys, the type of the problem
	// documents (RFC 9457) that refuse a request.
	Documentation string
	// Logger gets the reason why a request was answered with 500 or 503. nil: silent.
	Logger *slog.Logger
}

type handler[Tx any] struct {
	inbox  *inbox.Inbox
	db     DB[Tx]
	caller func(*http.Request) string
	handle Handler[Tx]
	opts   Options
}

// New returns a handler whose requests are claimed in the inbox. Give each
// operation or each API a consumer name of its own. caller returns the caller of a
// request: each caller has keys of its own. It must not change when a client logs in
// again, so use the account, not the token. For "" the client gets 401.
func New[Tx any](in *inbox.Inbox, db DB[Tx], caller func(*http.Request) string, handle Handler[Tx], opts *Options) http.Handler {
	h := &handler[Tx]{inbox: in, db: db, caller: caller, handle: handle}
	if opts != nil {
		h.opts = *opts
	}
	o := &h.opts
	if o.Keep == nil {
		o.Keep = final
	}
	if o.Fingerprint == nil {
		o.Fingerprint = fingerprint
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 1 << 20
	}
	if o.MaxAnswer <= 0 {
		o.MaxAnswer = 256 << 10
	}
	o.MaxAnswer = min(o.MaxAnswer, inbox.MaxResult)
	if o.RetryAfter <= 0 {
		o.RetryAfter = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return h
}

func final(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < 500
}

func fingerprint(r *http.Request, body []byte) string {
	return digest(r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Get("Content-Type"), string(body))
}

// digest returns different texts for different lists, even if their concatenations are equal.
func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = io.WriteString(h, strconv.Itoa(len(p))+":"+p) // never fails
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// Reasons to end a transaction that are no failures.
var (
	errBusy  = errors.New("another request with the key is running")
	errOther = errors.New("the key was used for another request")
	errOpen  = errors.New("the answer is not final")
)

func (h *handler[Tx]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, err := parseKey(r.Header.Values(KeyHeader))
	switch {
	case err != nil:
		h.refuse(w, http.StatusBadRequest, err.Error())
		return
	case key == "" && h.opts.Required:
		h.refuse(w, http.StatusBadRequest, "the header field "+KeyHeader+" is missing: send a value that is new for each operation and the same for its repetitions")
		return
	}
	who := h.caller(r)
	if who == "" {
		h.refuse(w, http.StatusUnauthorized, "the caller is unknown")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.opts.MaxBody))
	if err != nil {
		h.refuseBody(w, err)
		return
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	// A digest keeps names and keys of callers out of the table.
	m := postrider.Message{ID: digest(who, key), Topic: r.Method + " " + pattern(r), Type: "http"}
	a, replayed, err := h.transact(r, m, key != "", h.opts.Fingerprint(r, body))
	if err != nil && !errors.Is(err, errOpen) {
		h.fail(w, r, err)
		return
	}
	a.send(w, replayed)
}

// pattern returns the pattern that the request was routed by.
func pattern(r *http.Request) string {
	if r.Pattern != "" {
		return r.Pattern
	}
	return r.URL.Path
}

// transact returns the handler's answer to the request, or the stored
// one.
func (h *handler[Tx]) transact(r *http.Request, m postrider.Message, keyed bool, print string) (a *answer, replayed bool, err error) {
	ctx := r.Context()
	err = h.db.Transact(ctx, func(tx Tx, conn inbox.Conn) error {
		if keyed {
			fresh, busy, err := h.inbox.TryClaim(ctx, conn, m)
			switch {
			case err != nil:
				return err
			case busy:
				return errBusy
			case !fresh:
				a, err = h.kept(ctx, conn, m.ID, print)
				replayed = true
				return err
			}
		}
		a = newAnswer(print, h.opts.MaxAnswer)
		if err := h.handle(a, r, tx); err != nil {
			return err
		}
		if err := a.end(); err != nil {
			return err
		}
		if !h.opts.Keep(a.Status) {
			return errOpen
		}
		if !keyed {
			return nil
		}
		kept, err := a.encode()
		if err != nil {
			return err
		}
		return h.inbox.KeepResult(ctx, conn, m.ID, kept)
	})
	return a, replayed, err
}

func (h *handler[Tx]) kept(ctx context.Context, conn inbox.Conn, id, print string) (*answer, error) {
	result, err := h.inbox.Result(ctx, conn, id)
	if err != nil {
		return nil, err
	}
	a, err := decode(result)
	if err == nil && a.Fingerprint != print {
		err = errOther
	}
	return a, err
}
