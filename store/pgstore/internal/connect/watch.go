package connect

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/peer"
)

// Watched detects servers that are not PostgreSQL. It probes a silent server until the
// first PostgreSQL server has answered: later silence is an outage.
func Watched(dial peer.Dialer) pgconn.DialFunc {
	var met atomic.Bool
	protocol := peer.PostgreSQL()
	fits := protocol.Fits
	protocol.Fits = func(first []byte) bool {
		ok := fits(first)
		if ok {
			met.Store(true)
		}
		return ok
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		p := protocol
		if !met.Load() {
			p.Ask = func() string { return peer.Ask(dial, addr) }
		}
		return peer.Watch(conn, addr, p), nil
	}
}
