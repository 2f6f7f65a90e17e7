// Package wire talks to private servers, for tests, without a driver.
package wire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// ErrProtocol is returned when a server does not speak the protocol.
var ErrProtocol = errors.New("protocol error")

// Postgres opens a connection, runs one simple query and closes. It implements just
// enough of the protocol for a server that needs no password.
func Postgres(ctx context.Context, address, user, database, sql string) ([][]string, error) {
	conn, err := Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()

	startup := binary.BigEndian.AppendUint32(nil, 196608) // protocol 3.0
	for _, s := range []string{"user", user, "database", database, "application_name", "testserver", ""} {
		startup = append(append(startup, s...), 0)
	}
	if err := send(conn, 0, startup); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	if _, err := untilReady(r); err != nil {
		return nil, err
	}
	if err := send(conn, 'Q', append([]byte(sql), 0)); err != nil {
		return nil, err
	}
	rows, err := untilReady(r)
	if err != nil {
		return nil, err
	}
	return rows, send(conn, 'X', nil)
}

// Dial connects with a deadline that covers the whole exchange.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp4", address)
	if err != nil {
		return nil, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(30 * time.Second)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// send writes one message; the startup message has no kind.
func send(w io.Writer, kind byte, body []byte) error {
	var msg []byte
	if kind != 0 {
		msg = append(msg, kind)
	}
	msg = binary.BigEndian.AppendUint32(msg, uint32(len(body)+4))
	_, err := w.Write(append(msg, body...))
	return err
}

// untilReady reads messages up to ReadyForQuery and returns the data rows.
func untilReady(r io.Reader) ([][]string, error) {
	var rows [][]string
	var failed error
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return nil, errors.Join(failed, err)
		}
		size := binary.BigEndian.Uint32(head[1:])
		if size < 4 || size > 64<<20 {
			return nil, fmt.Errorf("%w: message %q of %d bytes", ErrProtocol, head[0], size)
		}
		body := make([]byte, size-4)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, errors.Join(failed, err)
		}
		switch head[0] {
		case 'R':
			if len(body) != 4 || binary.BigEndian.Uint32(body) != 0 {
				return nil, fmt.Errorf("%w: the server requires a password", ErrProtocol)
			}
		case 'E':
			failed = failure(body)
		case 'D':
			row, err := row(body)
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		case 'Z':
			return rows, failed
		}
	}
}

func row(b []byte) ([]string, error) {
	if len(b) < 2 {
		return nil, fmt.Errorf("%w: short row", ErrProtocol)
	}
	row := make([]string, binary.BigEndian.Uint16(b))
	b = b[2:]
	for i := range row {
		if len(b) < 4 {
			return nil, fmt.Errorf("%w: short row", ErrProtocol)
		}
		n := int32(binary.BigEndian.Uint32(b))
		b = b[4:]
		if n < 0 { // NULL
			continue
		}
		if int(n) > len(b) {
			return nil, fmt.Errorf("%w: short row", ErrProtocol)
		}
		row[i], b = string(b[:n]), b[n:]
	}
	return row, nil
}

// failure turns an ErrorResponse into "message (SQLSTATE code)".
func failure(b []byte) error {
	var message, code string
	for field := range strings.SplitSeq(string(b), "\x00") {
		if field == "" {
			continue
		}
		switch field[0] {
		case 'M':
			message = field[1:]
		case 'C':
			code = field[1:]
		}
	}
	return fmt.Errorf("%s (SQLSTATE %s)", message, code)
}
