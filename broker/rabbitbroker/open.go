package rabbitbroker

// Open returns a sink for a URL: see [ParseURL]. Where URL and opts, which may be nil,
// both set an option, the URL decides. Open does no network I/O: a broker that cannot
// be reached is an outage of Deliver. Close ends the sink and its connections.
func Open(rawURL string, opts *SinkOptions) (*Sink, error) {
	var t Target
	if opts != nil {
		t.Sink = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	return NewSink(t.Server, &t.Sink)
}

// OpenSource returns a source for a URL as [Open] takes it. opts must name a queue.
// Parameters for publishing are ignored. Close ends the source and its connection.
func OpenSource(rawURL string, opts *SourceOptions) (*Source, error) {
	var t Target
	if opts != nil {
		t.Source = *opts
	}
	if err := t.read(rawURL); err != nil {
		return nil, err
	}
	return NewSource(t.Server, &t.Source)
}
