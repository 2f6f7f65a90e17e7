package awsbroker

import (
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Polled hands a source the answer to a poll.
func Polled(s *Source, asked time.Time, msgs ...types.Message) {
	s.hand.Add(s.holds(&answer{msgs: msgs, asked: asked, arrived: time.Now()})...)
}

// Bodies is what requests pass on their way to the connections.
func Bodies(next http.RoundTripper) http.RoundTripper { return bodies{next} }
