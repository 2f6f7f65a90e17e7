package mysqlstore

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

	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

const (
	// hostsHedge is how long only the last known primary is asked.
	hostsHedge = 250 * time.Millisecond
	// hostsPatience is how long a host is waited for that does not answer.
	hostsPatience = 10 * time.Second
)

// connector returns a connector for the host, or for the primary among several.
func connector(cfg *mysql.Config, hosts []string) (driver.Connector, error) {
	one, err := mysql.NewConnector(cfg)
	if err != nil || len(hosts) == 1 {
		return one, err
	}
	h := &hostsConnector{Connector: one}
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

// hostsConnector connects to the primary among several hosts.
type hostsConnector struct {
	driver.Connector // of the first host, for Driver
	hosts            []candidate

	mu   sync.Mutex
	last string // the last known primary
}

type candidate struct {
	host string
	driver.Connector
}

// Connect implements driver.Connector. The last known primary is asked first and alone for a
// moment, then the others too, all at once.
func (h *hostsConnector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, hostsPatience)
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
				case <-time.After(hostsHedge):
				case <-ctx.Done():
				}
			}
			answers <- answer{i, ask(ctx, h.hosts[i])}
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
	return nil, hostErrors(errs)
}

// hostErrors has the reason of each host for which it was not connected to.
type hostErrors []error

func (e hostErrors) Error() string {
	texts := make([]string, len(e))
	for i, err := range e {
		texts[i] = err.Error()
	}
	return "no host takes writes: " + strings.Join(texts, "; ")
}

func (e hostErrors) Unwrap() []error { return e }

type answer struct {
	host int
	err  error // nil: it takes writes
}

// ask returns nil if the host takes writes.
func ask(ctx context.Context, c candidate) error {
	pool := sql.OpenDB(c.Connector)
	conn, err := pool.Conn(ctx)
	if err == nil {
		err = primary(ctx, conn)
		err = errors.Join(err, conn.Close())
	}
	return errors.Join(err, pool.Close())
}

// primary returns an error where the server takes no writes, or may lack some of the last ones.
func primary(ctx context.Context, q db.Querier) error {
	v, err := variables(ctx, q, decisive()...)
	if err == nil {
		err = refused(v)
	}
	if err == nil {
		err = inGroup(ctx, q, v["group_replication_group_name"])
	}
	return err
}
