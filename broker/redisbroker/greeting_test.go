package redisbroker_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// TestLateGreeting: a late answer to the greeting is not taken for the answer to the next
// command: each message would get the answer of the
// message before it.
func TestLateGreeting(t *testing.T) {
	t.Parallel()
	for _, late := range []string{"info", "config", "client"} {
		t.Run(late, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			m := &mute{T: t, late: late}
			go m.serve(l)
			sink := open(t, "redis://"+l.Addr().String()+"?timeout=300ms&durable=everysec")
			until(t, "the sink has a connection that answers", func() bool {
				_, err := sink.Probe(t.Context(), nil)
				return err == nil
			})
			if !m.hung.Load() {
				t.Errorf("nobody has asked for %s", late)
			}
		})
	}
}

// mute is a server that does not answer one command of its first connection.
type mute struct {
	*testing.T
	late string
	hung atomic.Bool
}

func (m *mute) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go m.talk(c)
	}
}

func (m *mute) talk(c net.Conn) {
	defer c.Close()
	answers := map[string]string{
		"info": bulk("redis_version:7.0.0\r\nrole:master\r\naof_enabled:1\r\n"), "client": "+OK\r\n", "ping": "+PONG\r\n",
		"config": "*2\r\n" + bulk("appendfsync") + bulk("always"), "multi": "+OK\r\n", "exec": "*0\r\n",
	}
	for r := bufio.NewReader(c); ; {
		name, err := commandOf(r)
		if err != nil {
			return
		}
		if name == m.late && m.hung.CompareAndSwap(false, true) {
			if next, err := commandOf(r); err == nil {
				m.Errorf("%s is sent where the answer to %s is still to come", next, m.late)
			}
			return
		}
		answer := answers[name]
		if answer == "" {
			answer = "-ERR unknown command\r\n"
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

// commandOf reads a command and returns its name.
func commandOf(r *bufio.Reader) (name string, err error) {
	n, err := number(r, '*')
	for i := range n {
		var size int
		if size, err = number(r, '$'); err != nil {
			return "", err
		}
		text := make([]byte, size+2)
		if _, err = io.ReadFull(r, text); err != nil {
			return "", err
		}
		if i == 0 {
			name = strings.ToLower(string(text[:size]))
		}
	}
	return name, err
}

func number(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("%q where a %c is due", line, kind)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}
