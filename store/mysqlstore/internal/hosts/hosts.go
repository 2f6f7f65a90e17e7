// Package hosts connects to the primary among several servers.
package hosts

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	// hedge is how long only the last known primary is asked.
	hedge = 250 * time.Millisecond
	// patience is how long a host is waited for that does not answer.
	patience = 10 * time.Second
)

// Check returns an error where a server is not the primary.
type Check func(ctx context.Context, conn *sql.Conn) error

// Connector returns a connector for the host, or for the primary among several.
func Connector(cfg *mysql.Config, hosts []string, check Check) (driver.Connector, error) {
	one, err := mysql.NewConnector(cfg)
	if err != nil || len(hosts) == 1 {
		return one, err
	}
	h := &several{Connector: one, check: check}
	for _, host := range hosts {
		each := cfg.Clone()
		each.Addr = host
		c, err := mysql.NewConnector(each)
		if err != nil {
			return nil, err
		}
		h.hosts = append(h.hosts, candidate{host, c})
	}
	return h, nil
}

// several connects to the primary among several hosts.
type several struct {
	driver.Connector // of the first host, for Driver
	hosts            []candidate
	check            Check

	mu   sync.Mutex
	last string // the last known primary
}

type candidate struct {
	host string
	driver.Connector
}

// Connect implements driver.Connector. The last known primary is asked first and alone for a
// moment, then the others too, all at once.
func (h *several) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	h.mu.Lock()
	first := slices.IndexFunc(h.hosts, func(c candidate) bool { return c.host == h.last })
	h.mu.Unlock()
	answers, others := make(chan answer, len(h.hosts)), make(chan struct{})
	for i := range h.hosts {
		go func() {
			if first >= 0 && i != first {
				select {
				case <-others:
				case <-time.After(hedge):
				case <-ctx.Done():
				}
			}
			answers <- answer{i, h.ask(ctx, h.hosts[i])}
		}()
	}
	errs := make([]error, len(h.hosts))
	for range h.hosts {
		a := <-answers
		if a.err == nil {
			found := h.hosts[a.host]
			h.mu.Lock()
			h.last = found.host
			h.mu.Unlock()
			return found.Connect(ctx)
		}
		if errs[a.host] = fmt.Errorf("%s: %w", h.hosts[a.host].host, a.err); a.host == first {
			close(others)
		}
	}
	return nil, reasons(errs)
}

// reasons has the reason of each host for which it was not connected to.
type reasons []error

func (e reasons) Error() string {
	texts := make([]string, len(e))
	for i, err := range e {
		texts[i] = err.Error()
	}
	return "no host takes writes: " + strings.Join(texts, "; ")
}

func (e reasons) Unwrap() []error { return e }

type answer struct {
	host int
	err  error // nil: it takes writes
}

// ask returns nil if the host takes writes.
func (h *several) ask(ctx context.Context, c candidate) error {
	pool := sql.OpenDB(c.Connector)
	conn, err := pool.Conn(ctx)
	if err == nil {
		err = h.check(ctx, conn)
		err = errors.Join(err, conn.Close())
	}
	return errors.Join(err, pool.Close())
}
