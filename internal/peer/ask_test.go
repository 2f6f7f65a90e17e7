package peer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/internal/peer"
)

// A server that is silent about the question of another protocol is asked what it
// speaks, and one that is merely slow is waited for.
func TestASilentServerIsAskedWhatItSpeaks(t *testing.T) {
	for name, c := range map[string]struct {
		answers map[string]string // to what begins so
		late    string            // sent after three seconds
		want    string            // the error, "": none
	}{
		"Redis":            {map[string]string{"PING": "+PONG\r\n"}, "", "it speaks Redis"},
		"a shut Redis":     {map[string]string{"PING": "-NOAUTH Authentication required.\r\n"}, "", "it speaks Redis"},
		"Kafka":            {map[string]string{"\x00\x00\x00\x0a\x00\x12": "\x00\x00\x01\x00PRID\x00\x00"}, "", "it speaks Kafka"},
		"slow PostgreSQL":  {nil, "N", ""},
		"a frozen process": {nil, "", "did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var open []net.Conn
				serve := func() net.Conn {
					here, there := net.Pipe()
					open = append(open, here, there)
					go func() {
						first := make([]byte, 64)
						n, _ := there.Read(first)
						for begin, answer := range c.answers {
							if strings.HasPrefix(string(first[:n]), begin) {
								_, _ = io.WriteString(there, answer)
							}
						}
					}()
					return here
				}
				p := peer.PostgreSQL()
				p.Ask = func() string {
					return peer.Ask(func(context.Context, string, string) (net.Conn, error) { return serve(), nil }, "h:1")
				}
				raw := serve()
				if c.late != "" {
					late := open[1]
					time.AfterFunc(3*time.Second, func() { _, _ = io.WriteString(late, c.late) })
				}
				conn, began := peer.Watch(raw, "h:1", p), time.Now()
				_ = conn.SetDeadline(began.Add(10 * time.Second))
				_, _ = io.WriteString(conn, "startup")
				_, err := conn.Read(make([]byte, 1))
				var e *peer.Error
				switch {
				case c.want == "" && err != nil:
					t.Error(err)
				case c.want != "" && (!errors.As(err, &e) || !strings.Contains(err.Error(), c.want)):
					t.Errorf("%v, want %q", err, c.want)
				case strings.Contains(c.want, "speaks") && time.Since(began) > 3*time.Second:
					t.Errorf("named after %v", time.Since(began))
				}
				for _, c := range open {
					_ = c.Close()
				}
			})
		})
	}
}
