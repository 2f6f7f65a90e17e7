package rabbitbroker

import (
	"weak"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Session returns a function that reports whether the source's present session is still referenced.
func (s *Source) Session() (held func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := weak.Make(s.live)
	return func() bool { return p.Value() != nil }
}

// Session identifies the sink's first connection.
func (s *Sink) Session() any { return s.lines[0].live.Load() }

// AnswerOn waits for the answer of the check at the start.
func AnswerOn(ch *amqp.Channel, refusal <-chan *amqp.Error) error { return answerOn(ch, refusal) }

// FindArguments and CheckQueue inspect an existing queue.
var (
	FindArguments = findArguments
	CheckQueue    = checkQueue
)
