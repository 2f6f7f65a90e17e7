package brokertest

import (
	"context"
	"fmt"
	"maps"

	"github.com/postrider/postrider"
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
	msgs := messages(env.Topic, 2*len(formats), 2*len(formats))
	sent := make(map[string]*postrider.Message, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		m.Type = formats[i/2].String()
		m.Payload, m.ContentType = fmt.Appendf(nil, `{"n":%d}`, i), "application/json"
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
	case got.ID != want.ID || got.Type != want.Type || got.Key != want.Key || got.Topic != want.Topic || got.Version != want.Version || got.ContentType != want.ContentType:
		return fmt.Errorf("got %+v, want %+v", *got, want)
	}
	return nil
}
