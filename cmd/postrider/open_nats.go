package main

import (
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

func openNATS(set *settings) (*openedSink, error) {
	router, err := set.router()
	if err != nil {
		return nil, err
	}
	bad := func(err error) error {
		return exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	target, err := natsbroker.ParseURL(set.broker)
	if err != nil {
		return nil, bad(err)
	}
	conn, err := target.Connect()
	if err != nil {
		return nil, bad(err)
	}
	opts := target.Sink
	opts.Route = router
	sink, err := natsbroker.NewSink(conn, &opts)
	if err != nil {
		conn.Close()
		return nil, bad(err)
	}
	return &openedSink{Sink: sink, close: conn.Close}, nil
}
