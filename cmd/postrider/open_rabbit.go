package main

import (
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

func openRabbit(set *settings) (*openedSink, error) {
	router, err := set.router()
	if err != nil {
		return nil, err
	}
	sink, err := rabbitbroker.Open(set.broker, router)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	return &openedSink{Sink: sink, close: sink.Close, adviceIsLoud: true}, nil
}

func openRabbitSource(set *settings, consumer, topic string) (*openedSource, error) {
	src, err := rabbitbroker.OpenSource(set.broker, rabbitbroker.SourceOptions{Queue: topic, Consumer: consumer})
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.broker), err)
	}
	return &openedSource{Source: src, close: src.Close}, nil
}
