package testserver

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Server has the operations that every started server supports.
type Server struct {
	PID int // of the main process; changed by Restart

	proc *process
}

// Kill ends the server and its children with SIGKILL, as a crash would.
func (s *Server) Kill() error { return s.proc.kill() }

// Stop shuts the server down, ending open sessions. It may be restarted.
func (s *Server) Stop() error { return s.proc.stop() }

// Restart starts the server again on the same data and port, stopping it first
// if it runs, and waits until it is ready.
func (s *Server) Restart() error {
	err := s.proc.restart(context.Background())
	s.PID = s.proc.pid()
	return err
}

// Freeze suspends the server: connections stay open but get no reply.
func (s *Server) Freeze() error { return s.proc.freeze() }

// Thaw ends Freeze.
func (s *Server) Thaw() error { return s.proc.thaw() }

// Close stops the server and removes its directory if it is a temporary one.
// Use it for servers of a Launch function.
func (s *Server) Close() error {
	err := s.proc.stop()
	s.proc.home.remove()
	return err
}

func (s *Server) attach(tb TB) { s.proc.attach(tb) }

// owned returns a test's own server, which ends with the test.
func owned[S interface{ attach(tb TB) }](tb TB, server S, err error) S {
	tb.Helper()
	if server = given(tb, server, err); err == nil {
		server.attach(tb)
	}
	return server
}

// given returns a server, or ends the test that has none.
func given[S any](tb TB, server S, err error) S {
	tb.Helper()
	if err != nil {
		GiveUp(tb, err)
	}
	return server
}

// replies succeeds once a server replies to req with 200. what names the request.
func replies(req *http.Request, err error, what string) error {
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", what, resp.Status)
	}
	return nil
}
