package redisbroker

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// link is one connection at a time, used by one caller at a time. The client
// beneath neither retries nor pools: a retry out of sight could repeat what was
// accepted. A context that ends closes the connection, so that nothing waits for
// an answer, and nothing is sent, after the caller has gone.
type link struct {
	client  *redis.Client
	timeout time.Duration

	mu   sync.Mutex
	conn net.Conn

	wrote     atomic.Bool // something went out since exec began
	abilities atomic.Int32
	confirms  bool        // the last wait for copies succeeded; belongs to the user of the link
	tx        transaction // the same
}

// newLink does no I/O. opts stays unchanged.
func newLink(opts *redis.Options, timeout time.Duration) *link {
	l := &link{timeout: timeout}
	l.abilities.Store(unknown)
	o := *opts
	o.MaxRetries = -1
	o.DialerRetries = 1
	o.PoolSize, o.MinIdleConns, o.MaxActiveConns = 1, 0, 0
	o.PipelinePoolSize = -1
	o.PoolTimeout = timeout
	o.ReadTimeout, o.WriteTimeout = timeout, timeout
	o.ContextTimeoutEnabled = true
	o.Protocol = 2 // no pushes, and one reply per command on every server
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.WriteBufferSize, o.ReadBufferSize = 64<<10, 32<<10
	if o.ClientName == "" {
		o.ClientName = "postrider"
	}
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(&o)
	}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		return l.track(conn), nil
	}
	before := o.OnConnect
	o.OnConnect = func(ctx context.Context, c *redis.Conn) error {
		l.look(ctx, c)
		if before != nil {
			return before(ctx, c)
		}
		return nil
	}
	l.client = redis.NewClient(&o)
	return l
}

// dialError marks an error before any byte was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return "not connected: " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// Commands that only newer servers know.
const (
	hasXAckDel = 1 << iota // XACKDEL and the ACKED strategy of trimming: Redis 8.2
	hasIDMP                // Redis 8.6
	unknown                // nobody has asked
)

// look notes what the server can do. Without leave to ask it counts as an old one.
func (l *link) look(ctx context.Context, c *redis.Conn) {
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		l.abilities.Store(0)
		return
	}
	l.abilities.Store(abilities(info))
}

// abilities reads INFO server. Valkey gives the version of the Redis that it
// came from, 7.2.4, for the sake of old clients.
func abilities(info string) int32 {
	_, version, _ := strings.Cut(info, "redis_version:")
	version, _, _ = strings.Cut(version, "\r\n")
	major, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, err := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if err != nil || err2 != nil {
		return 0
	}
	var has int32
	if a > 8 || a == 8 && b >= 2 {
		has |= hasXAckDel
	}
	if a > 8 || a == 8 && b >= 6 {
		has |= hasIDMP
	}
	return has
}

// meet connects, if that is needed to know what the server can do.
func (l *link) meet(ctx context.Context) error {
	if !l.has(unknown) {
		return nil
	}
	ping := redis.NewStatusCmd(ctx, "ping")
	if _, err := l.exec(ctx, ping); err != nil {
		return lost(ctx, false, err) // nothing that matters was sent
	}
	if err := ping.Err(); err != nil {
		return refused(err, "")
	}
	return nil
}

func (l *link) has(ability int32) bool { return l.abilities.Load()&ability != 0 }

// exec sends cmds and reads their replies, which the commands hold, each with an
// error of its own. The error is that of the connection; sent is false when the
// server cannot have seen any of the commands.
func (l *link) exec(ctx context.Context, cmds ...redis.Cmder) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	l.wrote.Store(false)
	stop := context.AfterFunc(ctx, l.cut)
	defer stop()
	pipe := l.client.Pipeline()
	if err := pipe.BatchProcess(ctx, cmds...); err != nil {
		return false, err
	}
	_, err = pipe.Exec(ctx)
	if err == nil || isReply(err) {
		return true, nil
	}
	if ctx.Err() != nil { // "use of closed network connection" says less
		err = ctx.Err()
	}
	var early *dialError
	if errors.As(err, &early) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrClosed) {
		return false, err
	}
	return l.wrote.Load(), err
}

// isReply reports whether the server said err.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// cut closes the connection; the next use makes a new one.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close() // whoever uses it sees the error
	}
}

func (l *link) close() { _ = l.client.Close() } // there is nothing to flush

func (l *link) track(conn net.Conn) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	w := &watched{Conn: conn, wrote: &l.wrote}
	if raw, ok := conn.(syscall.Conn); ok {
		return &watchedRaw{w, raw}
	}
	return w
}

// watched notes that something was written.
type watched struct {
	net.Conn
	wrote *atomic.Bool
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	if n > 0 {
		w.wrote.Store(true)
	}
	return n, err
}

// watchedRaw lets the client look whether the server has hung up before it
// takes an idle connection; only a connection without TLS can be looked at.
type watchedRaw struct {
	*watched
	raw syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (w *watchedRaw) SyscallConn() (syscall.RawConn, error) { return w.raw.SyscallConn() }
