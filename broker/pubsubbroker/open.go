package pubsubbroker

import "fmt"

// Open returns a sink for a URL: see [ParseURL]. Where URL and opts, which may be nil,
// both set an option, the URL decides. Open does no I/O: credentials that are missing and
// a service that cannot be reached are outages of Deliver. Close ends the sink and its
// connections.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	var t Target
	if opts != nil {
		t.Sink = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	if name := t.forSources; name != "" {
		return nil, fmt.Errorf("pubsubbroker: open sink: parameter %q is about receiving and has no effect on a sink; leave it out, consumers give it to OpenSource", name)
	}
	s, err := newSink(&t.Sink)
	if err != nil {
		return nil, err
	}
	s.line.dial = t.publisher
	return s, nil
}

// OpenSource returns a source for a URL as [Open] takes it. opts must name a subscription.
// Parameters about publishing are ignored. Close ends the source and its connections.
func OpenSource(rawURL string, opts *SourceOptions) (*Source, error) {
	var t Target
	if opts != nil {
		t.Source = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	s, err := newSource(&t.Source)
	if err != nil {
		return nil, err
	}
	s.line.dial = t.subscriber
	return s, nil
}
