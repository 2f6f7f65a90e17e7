package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// FilterOptions configures [NewFilter]. nil means all defaults.
type FilterOptions struct {
	Prefix string        // of the filter's keys; "postrider:seen:" if empty
	Expiry time.Duration // how long an id is remembered, to the millisecond; 1 h if zero
}

// Filter is a set of ids that Redis forgets after Expiry (SET NX PX), for
// consumer.Options.Filter: a guess at which messages are duplicates. Correctness
// never depends on it, so Redis may lose keys, evict them or be unreachable. A key takes
// about 150 bytes. It is safe for concurrent use.
type Filter struct {
	opts FilterOptions

	mu   sync.Mutex // held while link is used
	link *link
}

// filterTimeout bounds an answer when the caller's context allows more.
const filterTimeout = time.Second

// NewFilter returns a filter that makes one connection with a copy of the client's
// options. It does no I/O. The caller must close the filter.
func NewFilter(client *redis.Options, opts *FilterOptions) (*Filter, error) {
	if client == nil {
		return nil, errors.New("redisbroker: filter: client options are required")
	}
	f := &Filter{link: newLink(client, filterTimeout, demands{})}
	if opts != nil {
		f.opts = *opts
	}
	if f.opts.Prefix == "" {
		f.opts.Prefix = "postrider:seen:"
	}
	if f.opts.Expiry < time.Millisecond {
		f.opts.Expiry = time.Hour
	}
	return f, nil
}

// OpenFilter returns a filter for a URL: see [ParseURL]. Parameters for streams
// are ignored. Close closes the filter and its connection.
func OpenFilter(rawURL string, opts *FilterOptions) (*Filter, error) {
	t, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	f, err := NewFilter(t.Client, opts)
	if err != nil {
		return nil, err
	}
	f.link.hosts = t.hosts
	return f, nil
}

// Seen implements consumer.Filter. After an error the ids may or may not be recorded.
func (f *Filter) Seen(ctx context.Context, ids []string) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cmds := make([]redis.Cmder, len(ids))
	for i, id := range ids {
		cmds[i] = redis.NewStatusCmd(ctx, "set", f.opts.Prefix+id, "", "px", f.opts.Expiry.Milliseconds(), "nx")
	}
	if _, err := f.link.exec(ctx, cmds...); err != nil {
		f.link.leave()
		return nil, fmt.Errorf("redisbroker: filter: %w", err)
	}
	seen := make([]bool, len(ids))
	for i, c := range cmds {
		switch err := c.Err(); {
		case errors.Is(err, redis.Nil):
			seen[i] = true
		case err != nil:
			return nil, fmt.Errorf("redisbroker: filter: %w", err)
		}
	}
	return seen, nil
}

// Close closes the connection.
func (f *Filter) Close() { f.link.close() }
