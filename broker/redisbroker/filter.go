package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// FilterOptions of NewFilter. nil means all defaults.
type FilterOptions struct {
	Prefix string        // of its keys: "postrider:seen:"
	Expiry time.Duration // how long an id is remembered, to the millisecond: 1 h
}

// Filter is a set of ids that Redis forgets after a while (SET NX PX), for
// consumer.Options.Filter: a guess at which messages are duplicates. What it says
// is never relied upon, so Redis may lose keys, evict them or be away. A key takes
// about 150 bytes. It is safe for concurrent use.
type Filter struct {
	opts FilterOptions

	mu   sync.Mutex // held while link is used
	link *link
}

// filterTimeout is how long an answer may take when the caller's context allows more.
const filterTimeout = time.Second

// NewFilter returns a filter that makes one connection as client says, which is
// not changed. It does no I/O. Close it.
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

// OpenFilter returns a filter for a URL: see [ParseURL]. What the URL says of streams
// does not matter. Close ends the filter and its connection.
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

// Seen implements consumer.Filter. After an error nothing is known of ids.
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

// Close ends the connection.
func (f *Filter) Close() { f.link.close() }
