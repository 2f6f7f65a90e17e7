package brokertest

import (
	"context"
	"fmt"
	"maps"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// sinkFormats sends messages of each format and compares the received ones.
func sinkFormats(ctx context.Context, env *Env) error {
	if env.Routed == nil || env.Source == nil {
		return notApplicable("there is no sink with a route, or no source")
	}
	sink, err := env.Routed(ctx, func(m *postrider.Message) (envelope.Route, error) {
		f, err := envelope.ParseFormat(m.Type)
		frame := &envelope.Frame{Prefix: []byte{0, 0, 0, 1, 255}} // as a registry's sink adds it
		return envelope.Route{Topic: m.Topic, Key: m.Key, Format: f, Frame: frame}, err
	})
	if err != nil {
		return err
	}
	formats := envelope.Formats()
	msgs := messages(env.Topic, 3*len(formats), 3*len(formats))
	sent := make(map[string]*postrider.Message, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		m.Type = formats[i/3].String()
		m.Payload, m.ContentType = fmt.Appendf(nil, `{"n":%d}`, i), "application/json"
		if i%3 == 2 { // as Avro may begin, and a frame
			m.Payload, m.ContentType = fmt.Appendf(nil, "\x00payload %d", i), "application/octet-stream"
		}
		m.SchemaVersion = 3
		m.Headers = map[string]string{"tenant": "acme"}
		sent[string(m.Payload)] = m
	}
	src, end, err := env.Source(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := accept(ctx, sink, msgs); err != nil {
		return err
	}
	ds, err := drain(ctx, src, len(msgs))
	if err != nil {
		return err
	}
	for i := range ds {
		m := sent[string(ds[i].Message.Payload)]
		if m == nil {
			return fmt.Errorf("payload %q was not sent, or was received twice", ds[i].Message.Payload)
		}
		delete(sent, string(m.Payload))
		if err := sameAs(m, &ds[i].Message); err != nil {
			return fmt.Errorf("format %s: %w", m.Type, err)
		}
		if err := marked(m, &ds[i]); err != nil {
			return fmt.Errorf("format %s: %w", m.Type, err)
		}
	}
	return nil
}

// marked reports a wrong mark of a record of Postrider: a payload that could be taken for a
// framed one must show that it is ours, except in the format raw.
func marked(m *postrider.Message, d *broker.Delivery) error {
	ours := m.Type == envelope.Plain.String() || m.Type == envelope.Confluent.String()
	if raw := m.Type == envelope.Raw.String(); !raw && (ours || m.Payload[0] == 0) && d.Foreign || raw && !d.Foreign {
		return fmt.Errorf("payload %q: the delivery is marked as foreign: %v", m.Payload, d.Foreign)
	}
	return nil
}

// sameAs compares the fields that the format carries, which is m's type: raw and Debezium
// have key and type only if the broker's records have them.
func sameAs(m, got *postrider.Message) error {
	want := *m
	switch m.Type {
	case envelope.Debezium.String():
		want.Headers = map[string]string{"tenant": "acme", envelope.DebeziumID: m.ID}
		want.ContentType = ""
		fallthrough
	case envelope.Raw.String():
		if m.Type == envelope.Raw.String() {
			want.SchemaVersion = 0
		}
		want.ID, want.Topic, want.Version = got.ID, got.Topic, 0 // a webhook names no topic
		if got.Key == "" {
			want.Key = ""
		}
		if got.Type == "" {
			want.Type = ""
		}
	}
	switch {
	case !maps.Equal(got.Headers, want.Headers):
		return fmt.Errorf("headers %v, want %v", got.Headers, want.Headers)
	case got.ID != want.ID || got.Type != want.Type || got.Key != want.Key || got.Topic != want.Topic || got.Version != want.Version || got.SchemaVersion != want.SchemaVersion || got.ContentType != want.ContentType:
		return fmt.Errorf("got %+v, want %+v", *got, want)
	}
	return nil
}
