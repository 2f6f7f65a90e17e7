package main

import (
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

func openNATS(set *settings) (*openedSink, error) {
	conn, sink, err := natsbroker.Open(set.broker)
	if err != nil {
		return nil, usagef("broker %s cannot be used: %w", redact.URL(set.broker), err)
	}
	return &openedSink{Sink: sink, close: conn.Close}, nil
}
