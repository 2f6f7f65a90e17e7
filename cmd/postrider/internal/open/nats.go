package open

import (
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

func natsKind() kind {
	return kind{
		schemes: []string{"nats"}, form: "nats://HOST:PORT", sink: openNATS, source: openNATSSource,
		params: "  nats://[USER:PASSWORD@]HOST:PORT,...   ?subject-prefix=TEXT&dedup=on|off\n",
	}
}

func openNATS(set *Settings, _ string) (*Publisher, error) {
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	bad := func(err error) error {
		return exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
	}
	target, err := natsbroker.ParseURL(set.Broker)
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
	return &Publisher{Sink: sink, Close: conn.Close}, nil
}

func openNATSSource(set *Settings, consumer, topic string) (*Receiver, error) {
	nc, _, err := natsbroker.Open(set.Broker)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
	}
	src, err := natsbroker.NewSource(nc, natsbroker.SourceOptions{Stream: topic, Durable: consumer})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &Receiver{Source: src, Close: func() { src.Close(); nc.Close() }}, nil
}
