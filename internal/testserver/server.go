package testserver

import "context"

// Server is what a test can do to every server that was started for it.
type Server struct {
	PID int // of the main process; another one after Restart

	proc *process
}

// Kill ends the server and whatever belongs to it with SIGKILL, as a crash would.
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

// Freeze suspends the server: connections stay open and get no answer.
func (s *Server) Freeze() error { return s.proc.freeze() }

// Thaw ends Freeze.
func (s *Server) Thaw() error { return s.proc.thaw() }

// Close stops the server and removes its directory if it is a temporary one.
// It is for servers that came from a Launch function.
func (s *Server) Close() error {
	err := s.proc.stop()
	s.proc.home.remove()
	return err
}
