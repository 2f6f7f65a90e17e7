package inboxhttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/postrider/postrider/inbox"
)

// refuse answers with a problem document (RFC 9457).
func (h *handler[Tx]) refuse(w http.ResponseWriter, status int, detail string) {
	kind := h.opts.Documentation
	if kind == "" {
		kind = "about:blank"
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client may have gone
		"type": kind, "title": http.StatusText(status), "status": status, "detail": detail,
	})
}

func (h *handler[Tx]) refuseLater(w http.ResponseWriter, status int, detail string) {
	seconds := (h.opts.RetryAfter + time.Second - 1) / time.Second
	w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	h.refuse(w, status, detail)
}

func (h *handler[Tx]) refuseBody(w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		h.refuse(w, http.StatusRequestEntityTooLarge, "the body is larger than "+strconv.FormatInt(large.Limit, 10)+" bytes")
		return
	}
	h.refuse(w, http.StatusBadRequest, "the body ended before its end")
}

// fail answers a request whose transaction did not commit, or may
// have committed with a lost answer.
func (h *handler[Tx]) fail(w http.ResponseWriter, r *http.Request, err error) {
	var again *inbox.RetryableError
	switch {
	case errors.Is(err, errBusy):
		h.refuseLater(w, http.StatusConflict, "a request with this "+KeyHeader+" is still running: repeat it later")
		return
	case errors.Is(err, errOther):
		h.refuse(w, http.StatusUnprocessableEntity, "this "+KeyHeader+" was used for another request: use a new one")
		return
	case errors.Is(err, inbox.ErrNoResult):
		h.refuse(w, http.StatusConflict, "a request with this "+KeyHeader+" was processed, and its answer is not stored")
		return
	}
	h.opts.Logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "route", pattern(r), "error", err)
	if errors.As(inbox.Classify(err), &again) {
		h.refuseLater(w, http.StatusServiceUnavailable, "the database is busy: repeat the request with the same "+KeyHeader)
		return
	}
	h.refuse(w, http.StatusInternalServerError, "the request may be repeated with the same "+KeyHeader)
}
