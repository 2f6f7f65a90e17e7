package admin

import (
	"context"
	"log/slog"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// History adds points to the history of a pipe, in turn with other processes that do so. It
// is not safe for concurrent use.
type History struct {
	office   *ops.Office
	patience time.Duration
	own      bool      // this process added the newest point
	newest   time.Time // of the points, by the store's clock
	changed  time.Time // when another newest point was seen, by this process's clock
}

// ownPatience is the patience of a process that added the newest point. Ticks are not exact.
const ownPatience = ops.PointEvery - time.Second

// NewHistory returns the history of the office's pipe. It adds a point when no other process
// has added one for as long as patience: relays wait for [ops.PointEvery], and consoles longer,
// so that they add points only while no relay does. It returns a *ops.MissingError if the
// store keeps no history. It does no I/O.
func NewHistory(office *ops.Office, patience time.Duration) (*History, error) {
	if err := office.Need(ops.CanHistory); err != nil {
		return nil, err
	}
	return &History{office: office, patience: patience}, nil
}

// Look adds a point if it is time, with the figures that status returns, and reports whether it did.
func (h *History) Look(ctx context.Context, status func(context.Context) (ops.Status, error)) (bool, error) {
	now := time.Now()
	changed, err := h.follow(ctx)
	if err != nil {
		return false, err
	}
	if changed || h.changed.IsZero() {
		h.changed, h.own = now, false
		return false, nil
	}
	if h.own && now.Sub(h.changed) < ownPatience || !h.own && now.Sub(h.changed) < h.patience {
		return false, nil
	}
	h.changed = now
	s, err := status(ctx)
	if err != nil {
		return false, err
	}
	if h.own, err = h.office.History.Keep(ctx, ops.PointOf(&s)); err != nil {
		return false, err
	}
	_, err = h.follow(ctx)
	return h.own, err
}

// follow looks for a newer point. It compares times of the store's clock alone, which may
// differ from this process's.
func (h *History) follow(ctx context.Context) (changed bool, err error) {
	since, every := h.newest, time.Duration(0)
	if since.IsZero() { // about where the newest is; the next look finds it
		since, every = time.Now().Add(-48*time.Hour), 15*time.Minute
	}
	points, err := h.office.History.Points(ctx, since, every)
	if err != nil {
		return false, err
	}
	if len(points) == 0 {
		h.newest = time.Time{} // the clock was set back: older points may be the newest now
		return false, nil
	}
	newest := points[len(points)-1].At
	changed = !newest.Equal(h.newest)
	h.newest = newest
	return changed, nil
}

// KeepHistory adds points to the history of the office's pipe until ctx ends. It returns a
// *ops.MissingError if the store keeps none. Errors are logged at level debug: a gap in a
// chart says the same, and no failure here may end a relay.
func KeepHistory(ctx context.Context, office *ops.Office, log *slog.Logger) error {
	h, err := NewHistory(office, ownPatience)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(ops.PointEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		limited, cancel := context.WithTimeout(ctx, ops.PointEvery)
		if _, err := h.Look(limited, office.Admin.Status); err != nil && ctx.Err() == nil {
			log.DebugContext(ctx, "point not kept", "error", err)
		}
		cancel()
	}
}
