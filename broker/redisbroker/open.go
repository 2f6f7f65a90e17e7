package redisbroker

// Open returns a sink for a URL: see [ParseURL]. Where URL and opts, which may be nil,
// both set an option, the URL decides. Open does no I/O: a server that cannot be
// reached is an outage of Deliver. Close ends the sink and its connections.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	var t Target
	if opts != nil {
		t.Sink = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	s, err := NewSink(t.Client, &t.Sink)
	if err != nil {
		return nil, err
	}
	for _, l := range s.all {
		l.hosts = t.hosts
	}
	return s, nil
}

// OpenSource returns a source for a URL as [Open] takes it. opts must name a group and
// topics. Parameters for publishing are ignored. Close ends the source and its
// connections.
func OpenSource(rawURL string, opts *SourceOptions) (*Source, error) {
	var t Target
	if opts != nil {
		t.Source = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	s, err := NewSource(t.Client, &t.Source)
	if err != nil {
		return nil, err
	}
	s.read.hosts, s.done.hosts = t.hosts, t.hosts
	return s, nil
}
