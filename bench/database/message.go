package database

import (
	"github.com/postrider/postrider"
	"github.com/postrider/postrider/bench/rows"
)

// plain is the topic of the probes, and eventType the type of all messages.
const (
	plain     = "bench"
	eventType = "bench.event"
)

// Message returns message i as an application makes it.
func Message(topic string, i int) postrider.Message {
	return postrider.Message{
		ID: string(rows.ID(nil, i)), Topic: topic, Key: string(rows.Key(nil, i)), Type: eventType,
		Payload: rows.Payload(nil, i), ContentType: "application/json", Headers: map[string]string{"tenant": "a"},
	}
}

func messages(topic string) []postrider.Message {
	msgs := make([]postrider.Message, batch)
	for i := range msgs {
		msgs[i] = Message(topic, i)
	}
	return msgs
}
