package pgstore_test

import (
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// garbler forwards connections to a server. Once it is armed, it makes the next row of its log
// unreadable.
type garbler struct {
	addr  string
	armed atomic.Bool
}

func newGarbler(t *testing.T, port int) *garbler {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	g := &garbler{addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go g.forward(client, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		}
	}()
	return g
}

func (g *garbler) forward(client net.Conn, server string) {
	defer client.Close()
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer up.Close()
	go func() { _, _ = io.Copy(up, client); _ = up.Close() }()
	head := make([]byte, 5)
	for {
		if _, err := io.ReadFull(up, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(up, body); err != nil {
			return
		}
		const wal = 25 // CopyData: 'w', positions, clock; then the message of the plugin
		if head[0] == 'd' && len(body) > wal && body[0] == 'w' && body[wal] == 'I' && g.armed.CompareAndSwap(true, false) {
			body[wal] = '?'
		}
		if _, err := client.Write(append(head[:5:5], body...)); err != nil {
			return
		}
	}
}
