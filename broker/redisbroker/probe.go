package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/secret"
)

// Durability is the server configuration that the sink demands.
type Durability int

// The durabilities, from the weakest.
const (
	// DurableAny takes the server as it is.
	DurableAny Durability = iota
	// DurableEverySecond demands appendonly yes: a power cut costs about a second.
	DurableEverySecond
	// DurableAlways demands appendonly yes and appendfsync always as well.
	DurableAlways
)

// demands are the demands on the server of each new connection. It must always be the
// primary, and never a node of a cluster.
type demands struct {
	durable Durability
	synced  bool
	keeps   bool // it must not evict streams
}

// unfitError reports a server that does not meet the demands.
type unfitError struct {
	code string
	why  string
}

func (e *unfitError) Error() string { return e.code + " " + e.why }

// Codes beside the server's own.
const (
	codeEvicts       = "EVICTS"        // the server evicts keys at maxmemory: set maxmemory-policy noeviction
	codeDurable      = "NOT_DURABLE"   // the server keeps less than durable= in the URL: change one of them
	codeNoStream     = "NO_STREAM"     // the stream does not exist and the sink may not create it: create it
	codeNotConfirmed = "NOT_CONFIRMED" // replicas or disk did not confirm the write in time: check WAIT and WAITAOF
	codeTooLarge     = "TOO_LARGE"     // the entry is above the limit: raise it, or claim large payloads
)

// facts returns the fields of INFO.
func facts(info string) map[string]string {
	all := make(map[string]string)
	for line := range strings.SplitSeq(info, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			all[name] = value
		}
	}
	return all
}

// judge returns an error if the server of a new connection does not meet the demands.
func (d demands) judge(ctx context.Context, c *redis.Conn, is map[string]string) error {
	switch policy := is["maxmemory_policy"]; {
	case is["cluster_enabled"] == "1":
		return &unfitError{"MOVED", "the server is a node of Redis Cluster, which is not supported"}
	case is["role"] == "slave":
		return &unfitError{"READONLY", "the server is a replica: give the primary, or all hosts, in the broker's URL"}
	case d.keeps && evicts(is) && is["maxmemory"] != "0":
		return &unfitError{codeEvicts, "maxmemory-policy is " + policy + ": a whole stream could be deleted with its unread messages; set maxmemory-policy noeviction"}
	case d.durable == DurableAny && !d.synced:
		return nil
	}
	fsync := ""
	switch set, err := c.ConfigGet(ctx, "appendfsync").Result(); {
	case err == nil:
		fsync = set["appendfsync"]
	case !isReply(err): // as with INFO
		return err
	}
	return d.endures(is["aof_enabled"] == "1", fsync)
}

// endures checks durable= and synced=; fsync is "" if unknown.
func (d demands) endures(aof bool, fsync string) error {
	switch {
	case !aof:
		return &unfitError{codeDurable, "appendonly is off or unreadable: a crash may lose acknowledged messages; CONFIG SET appendonly yes, or use durable=any"}
	case d.synced && fsync == "no":
		return &unfitError{codeDurable, "appendfsync is no, and synced=true would wait for ever; CONFIG SET appendfsync everysec or always"}
	case d.durable == DurableAlways && fsync != "always":
		return &unfitError{codeDurable, "appendfsync is below always or unreadable: a power cut may lose about a second; CONFIG SET appendfsync always, or use durable=everysec"}
	}
	return nil
}

func evicts(is map[string]string) bool { return strings.HasPrefix(is["maxmemory_policy"], "allkeys-") }

// borrow takes a free link and returns it when use has returned.
func (s *Sink) borrow(ctx context.Context, use func(*link) error) error {
	select {
	case l := <-s.links:
		defer func() { s.links <- l }()
		return use(l)
	case <-ctx.Done():
		return fmt.Errorf("reach redis: %w", ctx.Err())
	}
}

// Ping is [broker.Info].Ping. On a new connection it checks the server like Deliver: a
// server that Deliver would not write to is an error.
func (s *Sink) Ping(ctx context.Context) error {
	return s.borrow(ctx, func(l *link) error {
		ping := redis.NewStatusCmd(ctx, "ping")
		_, err := l.exec(ctx, ping)
		if err != nil && ctx.Err() == nil { // the server may have closed an idle connection: try once more
			l.cut()
			ping = redis.NewStatusCmd(ctx, "ping")
			_, err = l.exec(ctx, ping)
		}
		if err != nil {
			err = lost(ctx, false, err)
			leave(l, broker.Classify(err).Code)
			return unreached(err)
		}
		if err := ping.Err(); err != nil && code(err.Error()) != "NOPERM" { // a denied PING is an answer
			return unreached(refused(err, ""))
		}
		return nil
	})
}

// Probe is [broker.Info].Probe. A server that Deliver would not write to is an
// error. Missing streams are errors only with NoCreate.
func (s *Sink) Probe(ctx context.Context, topics []string) (missing []error, err error) {
	err = s.borrow(ctx, func(l *link) error {
		ping := redis.NewStatusCmd(ctx, "ping")
		l.cut() // a new connection checks the server again
		if _, err := l.exec(ctx, ping); err != nil {
			return unreached(lost(ctx, false, err))
		}
		if err := ping.Err(); err != nil {
			return unreached(refused(err, ""))
		}
		l.transacts = false // checked again too
		if err := l.canTransact(ctx); err != nil {
			return unreached(err)
		}
		missing = make([]error, len(topics))
		for i, topic := range topics {
			missing[i] = s.look(ctx, l, topic)
		}
		return nil
	})
	return missing, err
}

// unreached returns Probe's error, marked as refused if a person must act.
func unreached(err error) error {
	switch broker.Classify(err).Code {
	case "NOAUTH", "WRONGPASS", "NOPERM":
		return fmt.Errorf("reach redis: %w: %w", broker.ErrRefused, err)
	}
	if errors.Is(err, secret.ErrUnreadable) {
		return fmt.Errorf("reach redis: %w: %w", broker.ErrRefused, err)
	}
	return fmt.Errorf("reach redis: %w", err)
}

// look returns the first error that would keep messages out of a topic's streams.
func (s *Sink) look(ctx context.Context, l *link, topic string) error {
	for _, stream := range Streams(s.opts.Prefix+topic, s.opts.Partitions) {
		kind := redis.NewStatusCmd(ctx, "type", stream)
		// The id is invalid on purpose: a user with the right gets an error about the
		// id, and nothing is added.
		add := redis.NewCmd(ctx, "xadd", stream, "none", payloadField, "")
		if _, err := l.exec(ctx, kind, add); err != nil {
			return fmt.Errorf("%q: %w", stream, lost(ctx, false, err))
		}
		if err := add.Err(); err != nil && code(err.Error()) == "NOPERM" {
			return fmt.Errorf("%q: %w", stream, refused(err, stream))
		}
		switch {
		case kind.Err() != nil:
			return fmt.Errorf("%q: %w", stream, refused(kind.Err(), stream))
		case kind.Val() == "none" && s.opts.NoCreate:
			return fmt.Errorf("%q: %w; create it: XGROUP CREATE %s GROUP 0 MKSTREAM", stream, errNoStream, stream)
		case kind.Val() != "none" && kind.Val() != "stream":
			return fmt.Errorf("%q: the key is a %s, not a stream", stream, kind.Val())
		}
	}
	return nil
}
