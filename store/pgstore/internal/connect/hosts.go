package connect

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store/pgstore/internal/db"
)

const (
	// hedge is how long only the last known primary is asked.
	hedge = 250 * time.Millisecond
	// again is the pause before a read-only server is asked again, while
	// another server has not answered.
	again = 300 * time.Millisecond
)

// hosts finds the primary among the hosts of a connection string.
// The driver asks them one after the other, and for each connection waits the whole
// connect_timeout for a frozen or disconnected host. Here all hosts are asked at
// once, and again while one is silent, since a failover may be in progress.
type hosts struct {
	mu   sync.Mutex
	last string // the last known primary
}

// answer is the answer of one server; its error is nil for a primary.
type answer struct {
	host int
	err  error
}

// UseHosts makes the pools of cfg connect to the primary among the hosts of its connection string,
// unless the string has one host or target_session_attrs. Call it before the pool is made.
func UseHosts(cfg *pgxpool.Config) {
	if len(candidates(cfg.ConnConfig)) < 2 {
		return
	}
	if cfg.ConnConfig.ValidateConnect == nil {
		cfg.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	h, before := &hosts{}, cfg.BeforeConnect
	cfg.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
		if err := h.beforeConnect(ctx, cc); err != nil || before == nil {
			return err
		}
		return before(ctx, cc)
	}
}

// beforeConnect reduces cc to the server to connect to.
func (h *hosts) beforeConnect(ctx context.Context, cc *pgx.ConnConfig) error {
	each := candidates(cc)
	h.mu.Lock()
	first := slices.IndexFunc(each, func(c *pgx.ConnConfig) bool { return address(c.Host, c.Port) == h.last })
	h.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers, others := make(chan answer, len(each)), make(chan struct{})
	for i, c := range each {
		go func() {
			if first >= 0 && i != first {
				select {
				case <-others:
				case <-time.After(hedge):
				case <-ctx.Done():
					return
				}
			}
			askHost(ctx, i, c, answers)
		}()
	}
	errs, silent := make(hostErrors, len(each)), len(each)
	for silent > 0 {
		var a answer
		select {
		case a = <-answers:
		case <-ctx.Done():
			return ctx.Err()
		}
		if a.err == nil {
			found := each[a.host]
			h.mu.Lock()
			h.last = address(found.Host, found.Port)
			h.mu.Unlock()
			cc.Host, cc.Port, cc.TLSConfig, cc.Fallbacks = found.Host, found.Port, found.TLSConfig, found.Fallbacks
			return nil
		}
		if a.host == first && errs[first] == nil {
			close(others)
		}
		if errs[a.host] == nil {
			silent--
		}
		errs[a.host] = a.err
	}
	return errs
}

// askHost answers until ctx ends or the server takes writes.
func askHost(ctx context.Context, i int, c *pgx.ConnConfig, answers chan<- answer) {
	for {
		conn, err := pgconn.ConnectConfig(ctx, &c.Config)
		if err == nil {
			_ = conn.Close(ctx) // an error does not matter after the answer
		}
		select {
		case answers <- answer{host: i, err: err}:
		case <-ctx.Done():
			return
		}
		if err == nil || db.Pause(ctx, again) != nil {
			return
		}
	}
}

// candidates returns a configuration for each server, in the order of the string. A
// server may occur twice: with TLS and without.
func candidates(cc *pgx.ConnConfig) []*pgx.ConnConfig {
	all := append([]*pgconn.FallbackConfig{{Host: cc.Host, Port: cc.Port, TLSConfig: cc.TLSConfig}}, cc.Fallbacks...)
	var each []*pgx.ConnConfig
	for _, f := range all {
		same := slices.IndexFunc(each, func(c *pgx.ConnConfig) bool { return c.Host == f.Host && c.Port == f.Port })
		if same >= 0 {
			each[same].Fallbacks = append(each[same].Fallbacks, f)
			continue
		}
		c := cc.Copy()
		c.Host, c.Port, c.TLSConfig, c.Fallbacks = f.Host, f.Port, f.TLSConfig, nil
		each = append(each, c)
	}
	return each
}

func address(host string, port uint16) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// hostErrors has the reason of each server for which no connection was made.
type hostErrors []error

func (e hostErrors) Error() string {
	texts := make([]string, len(e))
	for i, err := range e {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (e hostErrors) Unwrap() []error { return e }
