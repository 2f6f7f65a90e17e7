package orders

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
)

// Request is the body of every call of the API.
type Request struct {
	Order    string `json:"order"`
	Ref      string `json:"ref"`
	SKU      string `json:"sku,omitempty"`
	Qty      int    `json:"qty,omitempty"`
	Unit     string `json:"unit,omitempty"`     // "" for piece
	Declined bool   `json:"declined,omitempty"` // the card of POST /orders/{id}/pay
}

// Handler returns the HTTP API of the shop:
//
//	POST /orders            place an order: order, ref, sku, qty, unit
//	POST /orders/{id}/pay   pay it: ref, declined
//	POST /orders/{id}/ship  ship it: ref
//
// Answers are 204, 400 for a body that cannot be read or lacks something, 402
// for a declined card and 409 for an order in another state: one that is there
// already, is paid already, or not yet.
func (s *Shop) Handler(log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", answer(log, func(r *http.Request, q Request) error {
		return s.Place(r.Context(), Event{Order: q.Order, Ref: q.Ref, SKU: q.SKU, Quantity: Quantity{q.Qty, q.Unit}})
	}))
	mux.HandleFunc("POST /orders/{id}/pay", answer(log, func(r *http.Request, q Request) error {
		return s.Pay(r.Context(), Event{Order: r.PathValue("id"), Ref: q.Ref}, q.Declined)
	}))
	mux.HandleFunc("POST /orders/{id}/ship", answer(log, func(r *http.Request, q Request) error {
		return s.Ship(r.Context(), Event{Order: r.PathValue("id"), Ref: q.Ref})
	}))
	return mux
}

func answer(log *slog.Logger, do func(*http.Request, Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q Request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&q); err != nil {
			http.Error(w, "the body must be JSON", http.StatusBadRequest)
			return
		}
		err := do(r, q)
		switch {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case errors.Is(err, ErrInvalid):
			http.Error(w, ErrInvalid.Error(), http.StatusBadRequest)
		case errors.Is(err, ErrDeclined):
			http.Error(w, "card declined", http.StatusPaymentRequired)
		case errors.Is(err, ErrState):
			http.Error(w, "the order is in another state", http.StatusConflict)
		default:
			log.ErrorContext(r.Context(), "request failed", "path", r.URL.Path, "error", err)
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}
}
