package rabbitbroker

import (
	"weak"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Session says whether anything holds on to the session that the source has now.
func (s *Source) Session() (held func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := weak.Make(s.live)
	return func() bool { return p.Value() != nil }
}

// Session is what the sink's first connection is known by.
func (s *Sink) Session() any { return s.lines[0].live.Load() }

// AnswerOn is what the look at the start makes of what it has sent.
func AnswerOn(ch *amqp.Channel, refusal <-chan *amqp.Error) error { return answerOn(ch, refusal) }

// FindArguments and CheckQueue are the looks at a queue that is there.
var (
	FindArguments = findArguments
	CheckQueue    = checkQueue
)
