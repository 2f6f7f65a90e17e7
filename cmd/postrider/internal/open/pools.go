package open

import (
	"context"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Pools are the connections of a process that runs several relays: those of one
// database share a pool, or dozens of tenants would need hundreds of connections
// where each is idle nearly always. Relays that wait for a connection are served in
// turn, and a relay asks for four at the most, so that a busy relay does not keep
// the others waiting.
type Pools struct {
	mu    sync.Mutex
	users map[string]int // of each database
	made  map[string]*pgxpool.Pool
}

// Connections of one database: eight for a relay alone, two more for each other one.
const (
	firstConns, moreConns, mostConns = 8, 2, 32
)

// NewPools returns the shared connections of relays with these settings. It does no I/O.
func NewPools(sets []*Settings) *Pools {
	p := &Pools{users: map[string]int{}, made: map[string]*pgxpool.Pool{}}
	for _, set := range sets {
		p.users[set.poolKey()]++
	}
	return p
}

// poolKey is the same for settings that may share connections.
func (set *Settings) poolKey() string {
	return strings.Join([]string{set.postgresURL(), set.PasswordFile, set.PasswordCommand}, "\n")
}

// open returns the pool of a database and what gives it back.
func (p *Pools) open(key string, conf *pgxpool.Config) (*pgxpool.Pool, func(), error) {
	if p == nil {
		pool, err := pgxpool.NewWithConfig(context.Background(), conf)
		if err != nil {
			return nil, nil, err
		}
		return pool, pool.Close, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pool := p.made[key]
	if pool == nil {
		if n := p.users[key]; n > 1 && !strings.Contains(key, "pool_max_conns") {
			conf.MaxConns = int32(min(firstConns+moreConns*(n-1), mostConns))
		}
		var err error
		if pool, err = pgxpool.NewWithConfig(context.Background(), conf); err != nil {
			return nil, nil, err
		}
		p.made[key] = pool
	}
	return pool, func() { p.done(key) }, nil
}

// done closes the pool behind its last user. Those of other databases are not waited for.
func (p *Pools) done(key string) {
	p.mu.Lock()
	p.users[key]--
	last, pool := p.users[key] == 0, p.made[key]
	p.mu.Unlock()
	if last {
		pool.Close()
	}
}
