package redisbroker

import (
	"context"

	"github.com/postrider/postrider/broker"
)

var _ broker.Keeper = (*Sink)(nil)

// Keeps implements broker.Keeper. A stream has no setting of its own: it is what
// this sink trims it to, so ask with the URL of the relay.
func (s *Sink) Keeps(_ context.Context, topic string) (broker.Keeping, error) {
	return broker.Keeping{For: s.opts.Trim.MaxAge, Setting: "max-age in the relay's URL, for stream " + s.opts.StreamPrefix + topic}, nil
}
