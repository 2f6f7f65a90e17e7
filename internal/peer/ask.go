package peer

import (
	"bytes"
	"context"
	"io"
	"net"
	"time"
)

// Dialer makes a connection, as net.Dialer.DialContext does.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// question is what a server of a kind answers.
type question struct {
	name  string
	ask   []byte
	least int // bytes of an answer
	is    func(answer []byte) bool
}

// kafkaMark is the number of the request, which the answer repeats.
const kafkaMark = "\x50\x52\x49\x44"

func questions() []question {
	return []question{
		// ApiVersions, version 0, from a client without a name.
		{"Kafka", []byte("\x00\x00\x00\x0a\x00\x12\x00\x00" + kafkaMark + "\xff\xff"), 8, func(answer []byte) bool {
			return string(answer[4:8]) == kafkaMark
		}},
		{"Redis", []byte("PING\r\n"), 5, func(answer []byte) bool {
			return bytes.HasPrefix(answer, []byte("+PONG")) || spoken(answer) == "Redis"
		}},
	}
}

// askTimeout bounds the questions to a server.
const askTimeout = time.Second

// Ask returns what a server at addr speaks that keeps silent about a question of
// another protocol: "Kafka", "Redis", or "" where it answers neither. It asks each on
// a connection of its own and takes two seconds at the most.
func Ask(dial Dialer, addr string) string {
	for _, q := range questions() {
		if answer := q.answer(dial, addr); len(answer) >= q.least && q.is(answer) {
			return q.name
		}
	}
	return ""
}

func (q question) answer(dial Dialer, addr string) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout) //nolint:forbidigo // the Read under way has no context
	defer cancel()
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil
	}
	defer conn.Close()
	until, _ := ctx.Deadline()
	if err := conn.SetDeadline(until); err != nil {
		return nil
	}
	if _, err := conn.Write(q.ask); err != nil {
		return nil
	}
	answer := make([]byte, enough)
	n, _ := io.ReadAtLeast(conn, answer, q.least)
	return answer[:n]
}
