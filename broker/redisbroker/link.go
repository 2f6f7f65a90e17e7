package redisbroker

import (
	"bufio"
	"cmp"
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

	"github.com/postrider/postrider/internal/peer"
)

// link is one connection at a time, used by one caller at a time. The client
// beneath neither retries nor pools nor, as far as possible, dials: a
// hidden retry could repeat an accepted command, and after a failed dial its
// pool dials by itself for a while and logs. When a context ends, the link closes the
// connection, so that no answer is awaited and nothing is sent after the
// caller has gone.
type link struct {
	opts    redis.Options
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	hosts   *hosts // that dial chooses from; nil: a single host
	timeout time.Duration
	must    demands

	mu     sync.Mutex
	client *redis.Client
	conn   net.Conn // in use, or dialled for the next use
	fresh  net.Conn // the same connection, until the client has taken it
	closed bool
	was    uint32 // the hosts' turn when the connection was dialled

	wrote     atomic.Bool                // bytes were written since exec began
	wrong     atomic.Pointer[peer.Error] // set if the server's first bytes are of another protocol
	abilities atomic.Int32
	transacts bool          // the server accepts MULTI and EXEC; this and the following belong to the link's user
	confirms  bool          // the last wait for copies succeeded
	tx        transaction   // reused by each call
	used      time.Time     // when talk last got its answers
	w         *bufio.Writer // of talk, as is r
	r         *bufio.Reader
}

// newLink returns a link. It does no I/O and does not change opts.
func newLink(opts *redis.Options, timeout time.Duration, must demands) *link {
	l := &link{timeout: timeout, must: must}
	l.abilities.Store(unknown)
	o := *opts
	o.MaxRetries = -1
	o.DialerRetries = 1
	// One connection is enough. But after PoolSize failed dials the pool keeps
	// returning the last error, even for a second after the server is back.
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 1<<12, 0, 1, 0
	o.PipelinePoolSize = -1
	o.PoolTimeout = timeout
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout = timeout, timeout, timeout
	o.ContextTimeoutEnabled = true
	o.Protocol = 2 // no pushes, and one reply per command on every server
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.WriteBufferSize, o.ReadBufferSize = 16<<10, 32<<10
	name := cmp.Or(o.ClientName, "postrider")
	o.ClientName = "" // the client mistakes a missing right to set the name for a rejected login
	if o.Network == "" {
		o.Network = "tcp"
	}
	if l.dial = o.Dialer; l.dial == nil {
		l.dial = redis.NewDialer(&o)
	}
	o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) { return l.take(ctx) }
	before := o.OnConnect
	o.OnConnect = func(ctx context.Context, c *redis.Conn) error {
		if err := l.look(ctx, c); err != nil {
			return err
		}
		// The name is for CLIENT LIST only: a refusal does not matter. But a missing answer
		// would arrive as the answer to the next command.
		if err := c.ClientSetName(ctx, name).Err(); err != nil && !isReply(err) {
			return err
		}
		if before != nil {
			return before(ctx, c)
		}
		return nil
	}
	l.opts = o
	l.client = redis.NewClient(&l.opts)
	return l
}

// connect dials unless there is a connection, and reports whether it did.
func (l *link) connect(ctx context.Context) (dialled bool, err error) {
	l.mu.Lock()
	there, closed := l.conn != nil, l.closed
	if !there {
		l.was = l.hosts.now()
	}
	l.mu.Unlock()
	if closed {
		return false, redis.ErrClosed
	}
	if there {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	l.wrong.Store(nil)
	conn, err := l.dial(ctx, l.opts.Network, l.opts.Addr)
	if err != nil {
		return true, &dialError{err}
	}
	return true, l.track(conn)
}

// leave closes the connection; the next one is to another host, if the URL has one.
func (l *link) leave() {
	l.mu.Lock()
	was := l.was
	l.mu.Unlock()
	l.cut()
	l.hosts.leave(was)
}

// take gives the client the connection that connect has made. It has none to give when
// the client has found the previous connection dead.
func (l *link) take(ctx context.Context) (net.Conn, error) {
	for range 2 {
		l.mu.Lock()
		conn := l.fresh
		l.fresh = nil
		l.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		if _, err := l.connect(ctx); err != nil {
			return nil, err
		}
	}
	return nil, &dialError{net.ErrClosed}
}

// renew replaces a client whose pool is in an unknown state.
func (l *link) renew() {
	l.mu.Lock()
	old := l.client
	if !l.closed {
		l.client = redis.NewClient(&l.opts)
	}
	l.mu.Unlock()
	_ = old.Close() // its connections are dead
}

// dialError marks an error before any byte was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return "not connected: " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// Commands that only newer servers know.
const (
	hasXAckDel = 1 << iota // XACKDEL and the ACKED strategy of trimming: Redis 8.2
	hasIDMP                // Redis 8.6
	unknown                // not asked yet
)

// look records the server's abilities, and refuses a server that does not meet the
// demands. A server that denies INFO counts as an old one.
func (l *link) look(ctx context.Context, c *redis.Conn) error {
	l.abilities.Store(0)
	info, err := c.Info(ctx).Result()
	switch {
	case err == nil:
		l.abilities.Store(abilities(info))
	case !isReply(err): // a late answer would be taken for another command's
		return err
	case !strings.HasPrefix(err.Error(), "NOPERM"):
		return nil // later commands get the same error
	}
	return l.must.judge(ctx, c, facts(info))
}

// abilities reads INFO server. Valkey reports the version of the Redis that it
// was forked from, 7.2.4, for old clients.
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

// meet connects if the server's abilities are unknown.
func (l *link) meet(ctx context.Context) error {
	if !l.has(unknown) {
		return nil
	}
	ping := redis.NewStatusCmd(ctx, "ping")
	if _, err := l.exec(ctx, ping); err != nil {
		return lost(ctx, false, err) // no command was sent yet
	}
	if err := ping.Err(); err != nil {
		return refused(err, "")
	}
	return nil
}

func (l *link) has(ability int32) bool { return l.abilities.Load()&ability != 0 }

// exec sends cmds and reads their replies into the commands, each with an
// error of its own. err is an error of the connection; sent is false if the
// server cannot have seen any of the commands.
func (l *link) exec(ctx context.Context, cmds ...redis.Cmder) (sent bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	l.wrote.Store(false)
	stop := context.AfterFunc(ctx, l.cut)
	defer stop()
	dialled, err := l.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return false, err
	}
	l.mu.Lock()
	pipe := l.client.Pipeline()
	l.mu.Unlock()
	if err := pipe.BatchProcess(ctx, cmds...); err != nil {
		return false, err
	}
	_, err = pipe.Exec(ctx)
	if err == nil {
		return true, nil
	}
	if isReply(err) {
		for _, c := range cmds {
			if c.Err() != nil {
				return true, nil // each command has its own answer
			}
		}
		// This is the reply to the greeting: no command was sent. A server without AUTH
		// repeats the password in its error.
		return false, refusalOf([]byte(err.Error()))
	}
	if ctx.Err() != nil { // more useful than "use of closed network connection"
		err = ctx.Err()
	} else if wrong := l.wrong.Load(); wrong != nil { // more useful than the client's error
		err = wrong
	}
	var unfit *unfitError
	if errors.As(err, &unfit) {
		return false, unfit
	}
	var early *dialError
	if errors.As(err, &early) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrClosed) {
		l.renew()
		return false, err
	}
	if dialled && ctx.Err() == nil {
		l.leave() // the server accepts connections and never answers: it hangs, and may have been replaced
	}
	return l.wrote.Load(), err
}

// isReply reports whether err is an error reply of the server.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// cut closes the connection; the next use makes a new one.
func (l *link) cut() {
	l.mu.Lock()
	conn := l.conn
	l.conn, l.fresh = nil, nil
	l.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // its user gets the error
	}
}

func (l *link) close() {
	l.mu.Lock()
	l.closed = true
	client := l.client
	l.mu.Unlock()
	_ = client.Close() // no write is pending
	l.cut()
}

// track makes conn the link's connection.
func (l *link) track(conn net.Conn) error {
	w := &watched{Conn: conn, l: l}
	var c net.Conn = w
	if raw, ok := conn.(syscall.Conn); ok {
		c = &watchedRaw{w, raw}
	}
	w.self = c
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = conn.Close()
		return redis.ErrClosed
	}
	l.conn, l.fresh = c, c
	return nil
}

// watched records the first write to a connection, and its close.
type watched struct {
	net.Conn
	l    *link
	self net.Conn
}

func (w *watched) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	if n > 0 {
		w.l.wrote.Store(true)
	}
	return n, err
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	var wrong *peer.Error
	if err != nil && errors.As(err, &wrong) {
		w.l.wrong.Store(wrong)
	}
	return n, err
}

func (w *watched) Close() error {
	w.l.mu.Lock()
	if w.l.conn == w.self {
		w.l.conn, w.l.fresh = nil, nil
	}
	w.l.mu.Unlock()
	return w.Conn.Close()
}

// watchedRaw lets the client check whether the server has closed an idle connection
// before it takes it; that works without TLS only.
type watchedRaw struct {
	*watched
	raw syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (w *watchedRaw) SyscallConn() (syscall.RawConn, error) { return w.raw.SyscallConn() }
