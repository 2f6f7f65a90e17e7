// Package peer names what is wrong when the other end of a new connection speaks
// an unexpected protocol, or none. Client libraries report such a server as "EOF" or
// "invalid large response size", and some repeat the bytes that they received.
package peer

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Protocol is what a server is expected to speak.
type Protocol struct {
	Name string // "Redis"
	// Fits reports whether a server of this kind may begin with first, which has at
	// least one byte.
	Fits func(first []byte) bool
	// Greets marks a server that speaks first: its silence is an error too.
	Greets bool
	// Ask returns what a server speaks that has been silent for a second, "" where
	// that stays unknown; see [Ask]. nil: it is waited for. It runs in a goroutine of
	// its own.
	Ask func() string
}

// Error reports a server that is not of the expected kind.
type Error struct {
	Want   string // "Redis"
	Addr   string // HOST:PORT
	Speaks string // "HTTP"; "" where it is unknown
	Err    error  // the connection's, where the server has said nothing
	greets bool
}

func (e *Error) Error() string {
	var network net.Error
	late := errors.As(e.Err, &network) && network.Timeout()
	switch {
	case late && e.greets:
		return "not a " + e.Want + " server at " + e.Addr + ": it sent no greeting; check host and port"
	case late:
		return "the server at " + e.Addr + " accepted the connection and did not answer: it is frozen, requires TLS or is not a " + e.Want + " server"
	case e.Err != nil:
		return "the server at " + e.Addr + " closed the connection without an answer: it is not ready, requires TLS or is not a " + e.Want + " server"
	case e.Speaks == "TLS":
		return "not a " + e.Want + " server without TLS at " + e.Addr + ": it speaks TLS; enable TLS in the URL, or use the port without TLS"
	case e.Speaks != "":
		return "not a " + e.Want + " server at " + e.Addr + ": it speaks " + e.Speaks + "; check host and port"
	}
	return "not a " + e.Want + " server at " + e.Addr + ": it speaks another protocol; check host and port"
}

// Unwrap returns the connection's error.
func (e *Error) Unwrap() error { return e.Err }

// Foreign reports whether err says that a server speaks another protocol. It cannot
// have accepted a message.
func Foreign(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Err == nil
}

// Watch returns conn with a look at the first bytes that arrive. addr is HOST:PORT as it
// was dialled.
func Watch(conn net.Conn, addr string, p Protocol) net.Conn {
	w := &watched{Conn: conn, addr: addr, protocol: p}
	if raw, ok := conn.(syscall.Conn); ok {
		return &watchedRaw{w, raw}
	}
	return w
}

type watched struct {
	net.Conn
	addr     string
	protocol Protocol
	known    bool   // the first bytes fit
	rest     []byte // of them, that nobody has read yet
	err      error
	speaks   atomic.Pointer[string] // what a silent server was found to speak
}

// enough tells protocols apart.
const enough = 64

func (w *watched) Read(p []byte) (int, error) {
	if w.known && len(w.rest) == 0 {
		return w.Conn.Read(p)
	}
	if w.err != nil {
		return 0, w.err
	}
	if !w.known && len(p) > 0 {
		first := make([]byte, enough)
		stop := w.ask()
		n, err := w.Conn.Read(first)
		stop()
		if speaks := w.speaks.Load(); n == 0 && speaks != nil {
			w.err = &Error{Want: w.protocol.Name, Addr: w.addr, Speaks: *speaks}
			return 0, w.err
		}
		if n == 0 {
			return 0, w.silent(err)
		}
		if first = first[:n]; !w.protocol.Fits(first) {
			w.err = &Error{Want: w.protocol.Name, Addr: w.addr, Speaks: spoken(first)}
			return 0, w.err
		}
		w.known, w.rest = true, first
	}
	n := copy(p, w.rest)
	w.rest = w.rest[n:]
	return n, nil
}

// quiet is how long a server may be silent before it is asked what it speaks.
const quiet = time.Second

// ask ends a Read of a server that is silent and turns out to speak another protocol.
func (w *watched) ask() (stop func()) {
	if w.protocol.Ask == nil {
		return func() {}
	}
	timer := time.AfterFunc(quiet, func() {
		if speaks := w.protocol.Ask(); speaks != "" {
			w.speaks.Store(&speaks)
			_ = w.Conn.SetReadDeadline(time.Unix(1, 0)) // a closed connection has ended its Read
		}
	})
	return func() { timer.Stop() }
}

func (w *watched) silent(err error) error {
	var network net.Error
	if errors.As(err, &network) && network.Timeout() || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return &Error{Want: w.protocol.Name, Addr: w.addr, Err: err, greets: w.protocol.Greets}
	}
	return err
}

// watchedRaw lets a client look whether the server has hung up.
type watchedRaw struct {
	*watched
	raw syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (w *watchedRaw) SyscallConn() (syscall.RawConn, error) {
	raw, err := w.raw.SyscallConn()
	return &watchedFile{raw, w.watched}, err
}

type watchedFile struct {
	syscall.RawConn
	w *watched
}

// Read implements syscall.RawConn. It does not wait for the first answer: Read of the
// connection reports what is wrong.
func (f *watchedFile) Read(look func(fd uintptr) bool) error {
	if !f.w.known {
		return nil
	}
	return f.RawConn.Read(look)
}

// spoken returns the name of the protocol whose first bytes these are, "" if it
// is unknown.
func spoken(first []byte) string {
	for _, p := range []struct{ begin, name string }{
		{"HTTP/", "HTTP"},
		{"SSH-", "SSH"},
		{"INFO {", "NATS"},
		{"AMQP", "AMQP"},
		{"-ERR", "Redis"},
		{"-NOAUTH", "Redis"},
		{"-DENIED", "Redis"},
		{"220 ", "SMTP or FTP"},
		{"\x15\x03", "TLS"},
		{"\x16\x03", "TLS"},
		{"E\x00\x00\x00", "PostgreSQL"},
		{"\x01\x00\x00\x00\x00", "AMQP"},
	} {
		if bytes.HasPrefix(first, []byte(p.begin)) {
			return p.name
		}
	}
	if len(first) > 4 && first[3] == 0 && first[4] == 10 {
		return "MySQL"
	}
	return ""
}

// Redis answers with one of the types of RESP.
func Redis() Protocol {
	return Protocol{Name: "Redis", Fits: func(first []byte) bool { return bytes.IndexByte([]byte("+-:$*_#,(%~>!=|"), first[0]) >= 0 }}
}

// PostgreSQL answers S or N to the question for TLS, and else with a message. A pgx that
// negotiates TLS directly receives a handshake.
func PostgreSQL() Protocol {
	return Protocol{Name: "PostgreSQL", Fits: func(first []byte) bool {
		switch first[0] {
		case 'S':
			return len(first) == 1
		case 'N', 'E', 'R', 'v':
			return len(first) == 1 || first[1] == 0
		}
		return first[0] == 0x16
	}}
}

// NATS begins with INFO, or with TLS where the server wants that first.
func NATS() Protocol {
	return Protocol{Name: "NATS", Greets: true, Fits: func(first []byte) bool {
		return first[0] == 0x16 || bytes.HasPrefix(first, []byte("INFO")[:min(4, len(first))]) || bytes.HasPrefix(first, []byte("-ERR '")[:min(6, len(first))])
	}}
}

// RabbitMQ answers with a frame, or with the version of AMQP that it speaks.
func RabbitMQ() Protocol {
	return Protocol{Name: "RabbitMQ", Fits: func(first []byte) bool {
		return first[0] == 1 && (len(first) < 3 || first[1] == 0 && first[2] == 0) || bytes.HasPrefix(first, []byte("AMQP")[:min(4, len(first))])
	}}
}

// Kafka answers with the size of its answer, which is below 100 MiB.
func Kafka() Protocol {
	return Protocol{Name: "Kafka", Fits: func(first []byte) bool { return first[0] < 7 }}
}
