package redisbroker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// The sink writes its most frequent commands, and reads their replies, without the
// client's commands, which cost as much as the rest of the sink's work (ADR 28).
// The client makes connections, greets the server, and sends every other command.
// The protocol is RESP2: https://redis.io/docs/latest/develop/reference/protocol-spec/

// script writes commands one after the other.
type script struct {
	w *bufio.Writer // its errors come with Flush
}

// begin announces a command with this number of arguments.
func (s script) begin(args int) { s.head('*', args) }

func (s script) head(kind byte, n int) {
	b := append(s.w.AvailableBuffer(), kind)
	b = strconv.AppendInt(b, int64(n), 10)
	_, _ = s.w.Write(append(b, '\r', '\n'))
}

// maxHead is the most bytes around an argument: $, a length and two line ends.
const maxHead = 1 + 20 + 2 + 2

// arg writes an argument.
func arg[T string | []byte](s script, v T) {
	if s.w.Available() < maxHead+len(v) {
		s.head('$', len(v))
		_, _ = s.w.Write([]byte(v))
		_, _ = s.w.WriteString("\r\n")
		return
	}
	b := append(s.w.AvailableBuffer(), '$')
	b = strconv.AppendInt(b, int64(len(v)), 10)
	b = append(b, '\r', '\n')
	b = append(b, v...)
	_, _ = s.w.Write(append(b, '\r', '\n')) // where it is already: nothing is copied
}

// command writes a whole command.
func (s script) command(args ...string) {
	s.begin(len(args))
	for _, a := range args {
		arg(s, a)
	}
}

// reply is a server's answer to a command, without the contents of strings.
type reply struct {
	err   error // why the command was refused
	null  bool
	n     int64
	items []reply
}

// refusal is an error reply. It omits the arguments that a server repeats when it does
// not know the command, because they contain messages.
type refusal string

func refusalOf(text []byte) refusal {
	text, _, _ = bytes.Cut(text, []byte(", with args beginning with:"))
	return refusal(text)
}

func (r refusal) Error() string { return string(r) }

// RedisError implements redis.Error.
func (refusal) RedisError() {}

var _ redis.Error = refusal("")

// readReply reads one answer.
func readReply(r *bufio.Reader) (reply, error) { return readNested(r, 0) }

func readNested(r *bufio.Reader, depth int) (v reply, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil || len(line) < 3 || line[len(line)-2] != '\r' {
		return v, unreadable(err)
	}
	kind, text := line[0], line[1:len(line)-2]
	switch kind {
	case '+':
		return v, nil
	case '-':
		v.err = refusalOf(text)
		return v, nil
	}
	if v.n, err = strconv.ParseInt(string(text), 10, 64); err != nil {
		return v, unreadable(nil)
	}
	switch {
	case kind == ':':
		return v, nil
	case v.n < 0 && (kind == '$' || kind == '*'):
		return reply{null: true}, nil
	case kind == '$':
		if v.n > maxText {
			return v, unreadable(nil)
		}
		_, err = r.Discard(int(v.n) + 2)
		return reply{}, err
	case kind != '*' || v.n > maxItems || depth == maxDepth:
		return v, unreadable(nil)
	}
	items := make([]reply, v.n)
	for i := range items {
		if items[i], err = readNested(r, depth+1); err != nil {
			return v, err
		}
	}
	return reply{items: items}, nil
}

// Limits above any answer that a sink gets.
const (
	maxItems = 1 << 20
	maxText  = 1 << 20
	maxDepth = 4
)

func unreadable(err error) error {
	if err == nil {
		err = errors.New("the server's answer is not RESP")
	}
	return err
}

// freshFor is how long a connection counts as alive after its last use.
const freshFor = 500 * time.Millisecond

// talk sends the output of write and reads an answer into each of replies. err
// is an error of the connection, or the answer to its greeting; sent is false if
// the server cannot have seen any of the commands.
func (l *link) talk(ctx context.Context, write func(script), replies []reply) (sent bool, err error) {
	conn, err := l.greeted(ctx)
	if err != nil {
		return false, err
	}
	l.wrote.Store(false)
	stop := context.AfterFunc(ctx, l.cut)
	defer stop()
	if err := l.converse(conn, write, replies); err != nil {
		l.cut()
		if ctx.Err() != nil { // more useful than "use of closed network connection"
			err = ctx.Err()
		}
		return l.wrote.Load(), err
	}
	l.used = time.Now()
	return true, nil
}

func (l *link) converse(conn net.Conn, write func(script), replies []reply) error {
	if err := conn.SetDeadline(time.Now().Add(l.timeout)); err != nil {
		return err
	}
	if l.w == nil {
		l.w, l.r = bufio.NewWriterSize(conn, 64<<10), bufio.NewReaderSize(conn, 16<<10)
	}
	l.w.Reset(conn)
	l.r.Reset(conn)
	write(script{l.w})
	if err := l.w.Flush(); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(l.timeout)); err != nil {
		return err
	}
	for n := range replies {
		var err error
		if replies[n], err = readReply(l.r); err != nil {
			return fmt.Errorf("answer %d of %d: %w", n+1, len(replies), err)
		}
	}
	if l.r.Buffered() > 0 {
		return errors.New("the server sent more replies than there were commands")
	}
	return conn.SetDeadline(time.Time{})
}

// greeted returns a connection that the client has set up. It pings a connection that was
// idle for a while, because commands sent on a dead connection have an
// unknown outcome.
func (l *link) greeted(ctx context.Context) (net.Conn, error) {
	l.mu.Lock()
	conn, raw := l.conn, l.fresh != nil
	l.mu.Unlock()
	if conn != nil && !raw && time.Since(l.used) < freshFor {
		return conn, ctx.Err()
	}
	ping := redis.NewStatusCmd(ctx, "ping")
	if _, err := l.exec(ctx, ping); err != nil {
		return nil, err
	}
	if err := ping.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return nil, &dialError{net.ErrClosed}
	}
	return l.conn, nil
}
