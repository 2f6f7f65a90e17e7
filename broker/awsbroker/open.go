package awsbroker

import (
	"errors"
	"fmt"
)

var errNoSource = errors.New("awsbroker: SNS has no consumers: subscribe a queue with raw delivery, and receive from it by sqs://")

// Open returns a sink for a URL: see [ParseURL]. Where URL and opts, which may be nil,
// both set an option, the URL decides. Open reads the SDK's configuration files and
// does no network I/O: a service that cannot be reached is an outage of Deliver. Close
// ends the sink and its connections.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	var t Target
	if opts != nil {
		t.Sink = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	if name := t.forSources; name != "" {
		return nil, fmt.Errorf("awsbroker: open sink: parameter %q is about receiving and has no effect on a sink; leave it out, consumers give it to OpenSource", name)
	}
	cfg, idle, err := t.connect()
	if err != nil {
		return nil, err
	}
	var s *Sink
	if t.Service == "sns" {
		s, err = NewTopicSink(t.topics(cfg), &t.Sink)
	} else {
		s, err = NewSink(t.queues(cfg), &t.Sink)
	}
	if err != nil {
		return nil, err
	}
	s.idle = idle
	return s, nil
}

// OpenSource returns a source for a URL as [Open] takes it. opts must name a queue.
// Parameters about publishing are ignored. Close ends the source and its connections.
func OpenSource(rawURL string, opts *SourceOptions) (*Source, error) {
	var t Target
	if opts != nil {
		t.Source = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	if t.Service == "sns" {
		return nil, errNoSource
	}
	cfg, idle, err := t.connect()
	if err != nil {
		return nil, err
	}
	s, err := NewSource(t.queues(cfg), &t.Source)
	if err != nil {
		return nil, err
	}
	s.idle = idle
	return s, nil
}
