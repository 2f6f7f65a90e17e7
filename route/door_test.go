package route_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
)

func TestDoor(t *testing.T) {
	made := table(t,
		route.Rule{Name: "events", Match: route.Match{Topic: "e*"}, Format: envelope.CloudEventsStructured},
		route.Rule{Name: "tenants", Match: route.Match{Topic: "t"}, Key: "{header:tenant}"},
		route.Rule{Match: route.Match{Topic: "raw"}, Format: envelope.Raw},
	)
	door := &route.Door{Route: made.Route, Prefix: "prod.", Info: broker.Info{
		Name: "test", MaxMessageBytes: 1000, MaxTopicBytes: 12, MaxKeyBytes: 4, MaxHeaders: 6, MaxHeaderBytes: 300,
		TopicProblem: func(name string) error {
			if strings.Contains(name, " ") {
				return errors.New("has a space")
			}
			return nil
		},
	}}
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, tc := range []struct {
		name         string
		m            postrider.Message
		field, route string // "" for one that passes
	}{
		{"fits", postrider.Message{Topic: "e", Type: "x", Key: "k", Payload: []byte("{}")}, "", ""},
		{"no route", postrider.Message{Topic: "other"}, "topic", ""},
		{"no tenant", postrider.Message{Topic: "t"}, "header tenant", "tenants"},
		{"no type", postrider.Message{Topic: "e"}, "type", "events"},
		{"topic too long", postrider.Message{Topic: "e" + long(7), Type: "x"}, "topic", "events"},
		{"topic's letters", postrider.Message{Topic: "e e", Type: "x"}, "topic", "events"},
		{"key too long", postrider.Message{Topic: "t", Headers: map[string]string{"tenant": "abcde"}}, "key", "tenants"},
		{"payload grows as base64", postrider.Message{Topic: "e", Type: "x", Payload: []byte(long(700))}, "payload", "events"},
		{"the same as text", postrider.Message{Topic: "e", Type: "x", ContentType: "text/plain", Payload: []byte(long(700))}, "", ""},
		{"header bytes", postrider.Message{Topic: "t", Headers: map[string]string{"tenant": "a", "b": long(300)}}, "headers", "tenants"},
		{"headers", postrider.Message{Topic: "t", Headers: map[string]string{"tenant": "a", "b": "", "c": "", "d": "", "e": ""}}, "headers", "tenants"},
	} {
		err := door.Check(&tc.m)
		var limit *postrider.LimitError
		if tc.field == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		if !errors.As(err, &limit) || limit.Field != tc.field || limit.Route != tc.route || !errors.Is(err, postrider.ErrInvalid) {
			t.Errorf("%s: %v (%+v), want field %q of route %q", tc.name, err, limit, tc.field, tc.route)
		}
	}
	// What the relay leaves in the database is as large as its reference.
	door.Claim = &claim.Policy{Schema: "postrider", Above: 900, MaxAge: time.Hour}
	if err := door.Check(&postrider.Message{Topic: "t", Headers: map[string]string{"tenant": "a"}, Payload: []byte(long(5000))}); err != nil {
		t.Errorf("a payload that stays in the database: %v", err)
	}
	if err := door.Check(&postrider.Message{Topic: "e", Type: "x", Payload: []byte(long(890))}); err == nil {
		t.Error("a payload that travels, and is too large as base64, passes")
	}
	if err := door.Check(&postrider.Message{Topic: "raw", Payload: []byte(long(950))}); err != nil {
		t.Errorf("a payload that a raw record carries whole: %v", err)
	}
	if err := door.Check(&postrider.Message{Topic: "raw", Payload: []byte(long(5000))}); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a payload that no raw record carries: %v", err)
	}
	if err := (&route.Door{}).Check(&postrider.Message{Topic: "t"}); err != nil {
		t.Errorf("a door that knows nothing: %v", err)
	}
}
