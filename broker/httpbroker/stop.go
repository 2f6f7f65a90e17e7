package httpbroker

import (
	"time"

	"github.com/postrider/postrider/broker"
)

// Stop is [broker.Stops].Set. Endpoints are identified by name.
func (s *Sink) Stop(endpoints []string) {
	stopped := make(map[string]bool, len(endpoints))
	for _, name := range endpoints {
		stopped[name] = true
	}
	s.swap.Lock()
	defer s.swap.Unlock()
	s.stopped = stopped
	for _, t := range s.table.Load().targets {
		t.hold(stopped[t.p.Name])
	}
}

// Gone is [broker.Stops].Gone. It returns the endpoints that have answered 410 Gone.
func (s *Sink) Gone() []broker.Gone {
	var all []broker.Gone
	for _, t := range s.table.Load().targets {
		t.mu.Lock()
		if t.br.gone && !t.held {
			all = append(all, broker.Gone{Destination: t.p.Name, Reason: "the endpoint has answered 410 Gone"})
		}
		t.mu.Unlock()
	}
	return all
}

// hold stops the endpoint or resumes it. Requests in flight continue: their
// answers count.
func (t *target) hold(on bool) {
	t.mu.Lock()
	if t.held && !on { // a person's resume outweighs the endpoint's last answer
		t.br.gone, t.br.until = false, time.Time{}
	}
	t.held = on
	var waiting []*job
	shut := t.closedTo(time.Now())
	if on {
		waiting, t.queue = t.queue, nil
	}
	t.mu.Unlock()
	t.answerAll(waiting, shut)
}
