package storetest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/postrider/postrider"
)

func messageCases() []Case {
	return []Case{
		{
			Name: "message/every-field", Run: messageEveryField,
			Promise: "every field of a message is read as it was written, byte for byte",
		},
		{
			Name: "message/zero-fields", Run: messageZeroFields,
			Promise: "a message with only a topic is read with an id and a time added and nothing else",
		},
		{
			Name: "message/large", Run: messageLarge,
			Promise: "a payload of a megabyte of any bytes is read as it was written",
		},
		{
			Name: "message/id", Run: messageID,
			Promise: "a writer's id is kept, and generated ids are all different",
		},
	}
}

// fullMessage has every field that a writer can set.
func fullMessage() postrider.Message {
	return postrider.Message{
		ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "orders.v1", Key: "ключ 鍵 🔑 '\"\\", Type: "order.placed",
		Payload:     []byte{0, 1, 2, 0xff, 0xfe, '\n', '\r', '\'', '"', '\\', 0x80, 0},
		ContentType: "application/x-protobuf; v=\"1\"",
		Headers: map[string]string{
			"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			"x-empty":     "", "x-quote": `a "b" \ 'c' {d}, é 鍵 🔑`, "X-Case": "kept",
		},
		Version: 1 << 40, SchemaVersion: 7,
		NotBefore: time.Date(2099, 12, 31, 23, 59, 59, 123456000, time.UTC),
	}
}

// sameMessage compares the fields that a writer set. Times are compared to the
// microsecond, the precision of databases.
func sameMessage(got, want postrider.Message) error {
	switch {
	case got.ID != want.ID:
		return fmt.Errorf("id is %q, want %q", got.ID, want.ID)
	case got.Topic != want.Topic:
		return fmt.Errorf("topic is %q, want %q", got.Topic, want.Topic)
	case got.Key != want.Key:
		return fmt.Errorf("key is %q, want %q", got.Key, want.Key)
	case got.Type != want.Type:
		return fmt.Errorf("type is %q, want %q", got.Type, want.Type)
	case !bytes.Equal(got.Payload, want.Payload):
		return fmt.Errorf("payload of %d bytes differs from the %d bytes written", len(got.Payload), len(want.Payload))
	case got.ContentType != want.ContentType:
		return fmt.Errorf("content type is %q, want %q", got.ContentType, want.ContentType)
	case !maps.Equal(got.Headers, want.Headers):
		return fmt.Errorf("headers are %q, want %q", got.Headers, want.Headers)
	case got.Version != want.Version:
		return fmt.Errorf("version is %d, want %d", got.Version, want.Version)
	case got.SchemaVersion != want.SchemaVersion:
		return fmt.Errorf("schema version is %d, want %d", got.SchemaVersion, want.SchemaVersion)
	case !got.NotBefore.Truncate(time.Microsecond).Equal(want.NotBefore.Truncate(time.Microsecond)):
		return fmt.Errorf("not before is %v, want %v", got.NotBefore, want.NotBefore)
	}
	return nil
}

// roundTrip writes one message and reads it.
func roundTrip(ctx context.Context, env Env, m postrider.Message) (postrider.Message, error) {
	if err := commit(ctx, env, m); err != nil {
		return postrider.Message{}, err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return postrider.Message{}, err
	}
	all, err := r.all(ctx)
	if err != nil {
		return postrider.Message{}, err
	}
	for _, b := range all {
		return b.Messages[0], nil
	}
	return postrider.Message{}, fmt.Errorf("the message of key %q cannot be read", m.Key)
}

func messageEveryField(ctx context.Context, env Env) error {
	got, err := roundTrip(ctx, env, fullMessage())
	if err != nil {
		return err
	}
	if got.Time.IsZero() {
		return fmt.Errorf("message %s has no time", got.ID)
	}
	return sameMessage(got, fullMessage())
}

func messageZeroFields(ctx context.Context, env Env) error {
	got, err := roundTrip(ctx, env, postrider.Message{Topic: "orders"})
	if err != nil {
		return err
	}
	if err := got.Validate(); err != nil || got.ID == "" || got.Time.IsZero() {
		return fmt.Errorf("id is %q, time %v, error %v", got.ID, got.Time, err)
	}
	if !got.NotBefore.IsZero() {
		return fmt.Errorf("not before is %v, want none", got.NotBefore)
	}
	return sameMessage(got, postrider.Message{ID: got.ID, Topic: "orders", Headers: got.Headers, NotBefore: got.NotBefore})
}

func messageLarge(ctx context.Context, env Env) error {
	m := fullMessage()
	m.Payload = make([]byte, 1<<20)
	for i := range m.Payload {
		m.Payload[i] = byte(i ^ i>>8)
	}
	got, err := roundTrip(ctx, env, m)
	if err != nil {
		return err
	}
	return sameMessage(got, m)
}

func messageID(ctx context.Context, env Env) error {
	given := label("k", "given")
	given.ID = "11111111-2222-4333-8444-555555555555"
	if err := commit(ctx, env, append(series("k", "m", 20), given)...); err != nil {
		return err
	}
	_, all, err := look(ctx, env)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, b := range all {
		for i := range b.Messages {
			seen[b.Messages[i].ID] = true
		}
	}
	if len(seen) != 21 || !seen[given.ID] {
		return fmt.Errorf("21 messages have %d ids, the given id among them: %v", len(seen), seen[given.ID])
	}
	return nil
}
