package route_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
)

func table(t *testing.T, rules ...route.Rule) *route.Table {
	t.Helper()
	made, err := route.New(rules)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestFirstRuleThatMatches(t *testing.T) {
	made := table(t,
		route.Rule{Name: "acme", Match: route.Match{Topic: "billing.*", Headers: map[string]string{"tenant": "acme"}}, Topic: "acme.{topic}", Key: "{header:tenant}/{key}"},
		route.Rule{Match: route.Match{Type: "*.placed", Headers: map[string]string{"vip": "*"}}, Format: envelope.CloudEvents, Source: "//shop/{topic}", Subject: "{key|none}", Headers: map[string]string{"kind": "{type}", "fixed": "a{{b}}"}},
		route.Rule{Name: "debezium", Match: route.Match{Topic: "o*s"}, Format: envelope.Debezium, Headers: map[string]string{"eventType": "order"}},
		route.Rule{Name: "versions", Match: route.Match{Topic: "v"}, Topic: "v{version}.{schema_version|0}.{content_type|none}.{id}", Headers: map[string]string{"gone": "{header:x|}"}},
	)
	for _, tc := range []struct {
		m    postrider.Message
		want envelope.Route
	}{
		{
			postrider.Message{Topic: "billing.eu", Key: "k", Headers: map[string]string{"tenant": "acme"}},
			envelope.Route{Rule: "acme", Topic: "acme.billing.eu", Key: "acme/k"},
		},
		{
			postrider.Message{Topic: "billing.eu", Type: "order.placed", Headers: map[string]string{"vip": ""}},
			envelope.Route{Rule: "#2", Topic: "billing.eu", Format: envelope.CloudEvents, Source: "//shop/billing.eu", Subject: "none", Headers: map[string]string{"kind": "order.placed", "fixed": "a{b}"}},
		},
		{
			postrider.Message{Topic: "orders", Key: "k", Type: "order.shipped"},
			envelope.Route{Rule: "debezium", Topic: "outbox.event.orders", Key: "k", Format: envelope.Debezium, Headers: map[string]string{"eventType": "order"}},
		},
		{
			postrider.Message{Topic: "v", Version: 7, ID: "i"},
			envelope.Route{Rule: "versions", Topic: "v7.0.none.i", Headers: map[string]string{}},
		},
	} {
		got, err := made.Route(&tc.m)
		if err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%+v:\ngot  %+v, %v\nwant %+v", tc.m, got, err, tc.want)
		}
	}
}

func TestWhatHasNoRoute(t *testing.T) {
	made := table(t,
		route.Rule{Name: "typed", Match: route.Match{Topic: "a"}, Topic: "events.{type}"},
		route.Rule{Name: "tenant", Match: route.Match{Topic: "b"}, Headers: map[string]string{"x": "{header:tenant}"}},
	)
	for _, tc := range []struct {
		m    postrider.Message
		want envelope.RouteError
	}{
		{postrider.Message{Topic: "c"}, envelope.RouteError{Code: "NO_ROUTE"}},
		{postrider.Message{Topic: "a"}, envelope.RouteError{Code: "ROUTE_UNUSABLE", Rule: "typed", Field: "type"}},
		{postrider.Message{Topic: "b", Headers: map[string]string{"tenant": ""}}, envelope.RouteError{Code: "ROUTE_UNUSABLE", Rule: "tenant", Field: "header tenant"}},
	} {
		_, err := made.Route(&tc.m)
		var got *envelope.RouteError
		if !errors.As(err, &got) || got.Code != tc.want.Code || got.Rule != tc.want.Rule || got.Field != tc.want.Field {
			t.Errorf("topic %s: %+v", tc.m.Topic, err)
		}
	}
}

func TestDestinationsWithoutAMessage(t *testing.T) {
	made := table(t,
		route.Rule{Match: route.Match{Topic: "a"}, Topic: "one"},
		route.Rule{Match: route.Match{Topic: "b"}, Topic: "two.{type}"},
		route.Rule{Match: route.Match{Topic: "c"}, Topic: "one"},
		route.Rule{Match: route.Match{Topic: "d"}, Format: envelope.Debezium},
		route.Rule{Topic: "{{x}}"},
	)
	if got, want := made.Destinations(), []string{"one", "{x}"}; !slices.Equal(got, want) {
		t.Errorf("destinations %q, want %q", got, want)
	}
}

// anything is a checker that accepts all payloads.
type anything struct{}

func (anything) Check(*postrider.Message) error { return nil }

func TestParseValidation(t *testing.T) {
	for text, want := range map[string]route.Validation{"off": route.Off, "warn": route.Warn, "reject": route.Reject} {
		if got, err := route.ParseValidation(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if _, err := route.ParseValidation("on"); err == nil {
		t.Error("on is a validation")
	}
}

func TestTablesThatCannotBeRight(t *testing.T) {
	all := route.Rule{Name: "all"}
	for _, tc := range []struct {
		rules []route.Rule
		want  string
	}{
		{[]route.Rule{{Topic: "{topik}"}}, "route #1: topic has the unknown {topik}: use {topic}"},
		{[]route.Rule{{Key: "{key"}}, "key has a brace"},
		{[]route.Rule{{Key: "key}"}}, "key has a brace"},
		{[]route.Rule{{Topic: "{header:}"}}, `"" is not a header name`},
		{[]route.Rule{{Headers: map[string]string{"a": "{b}"}}}, "header a has the unknown {b}"},
		{[]route.Rule{{Headers: map[string]string{"postrider-id": "x"}}}, "reserved prefix"},
		{[]route.Rule{{Headers: map[string]string{"Content-Type": "x"}}}, "set with the message"},
		{[]route.Rule{{Format: envelope.Debezium, Headers: map[string]string{"Id": "x"}}}, "is the message's id"},
		{[]route.Rule{{Source: "x"}}, "source is an attribute of CloudEvents, and the format is plain"},
		{[]route.Rule{all, {Match: route.Match{Topic: "a"}}}, "route #2: it is never reached: route all before it matches"},
		{[]route.Rule{{Match: route.Match{Topic: "a.*"}}, {Match: route.Match{Topic: "a.b*c", Type: "x"}}}, "never reached"},
		{[]route.Rule{{Match: route.Match{Headers: map[string]string{"a": "*"}}}, {Match: route.Match{Headers: map[string]string{"a": "1", "b": "2"}}}}, "never reached"},
		{[]route.Rule{{Name: "a", Match: route.Match{Topic: "a"}}, {Name: "a"}}, "duplicate name"},
		{[]route.Rule{{Validate: route.Reject}}, "validate needs schemas"},
		{[]route.Rule{{Validate: route.Warn, Validator: anything{}}}, "Warn is nil"},
		{[]route.Rule{{Validate: 9, Validator: anything{}}}, "use off, warn or reject"},
		{[]route.Rule{{Where: "f.yml:3:5", Topic: "{x}"}}, "f.yml:3:5: route #1: topic"},
	} {
		_, err := route.New(tc.rules)
		var bad *route.Error
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.rules, err, tc.want)
		}
	}
	if _, err := route.New([]route.Rule{{Match: route.Match{Topic: "a.*"}}, {Match: route.Match{Topic: "*"}}, {Name: "x", Match: route.Match{Topic: "b"}}}); err == nil {
		t.Error("a rule behind * is reached")
	}
}

// FuzzUnreachable: whoever is said to be unreachable is.
func FuzzUnreachable(f *testing.F) {
	f.Add("a*", "ab*c", "abxc")
	f.Add("*b*", "a*b", "ab")
	f.Fuzz(func(t *testing.T, first, second, topic string) {
		if topic == "" {
			t.Skip()
		}
		one := table(t, route.Rule{Match: route.Match{Topic: first}})
		two := table(t, route.Rule{Match: route.Match{Topic: second}})
		if _, err := route.New([]route.Rule{{Match: route.Match{Topic: first}}, {Match: route.Match{Topic: second}}}); err == nil {
			return
		}
		m := postrider.Message{Topic: topic}
		_, hit := two.Route(&m)
		if _, err := one.Route(&m); hit == nil && err != nil {
			t.Errorf("%q is said to cover %q, and does not match %q", first, second, topic)
		}
	})
}

func BenchmarkRoute(b *testing.B) {
	made, err := route.New([]route.Rule{
		{Match: route.Match{Topic: "billing.*"}},
		{Match: route.Match{Type: "invoice.*"}},
		{Topic: "prod.{topic}", Headers: map[string]string{"a": "b"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	m := postrider.Message{Topic: "orders", Key: "k", Type: "order.placed"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := made.Route(&m); err != nil {
			b.Fatal(err)
		}
	}
}

// The subject of a topic is kept for the next message; one of another topic has its own.
func TestSubjectsOfSeveralTopics(t *testing.T) {
	table, err := route.New([]route.Rule{{Format: envelope.Confluent, SchemaVersion: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"a", "a", "b", "a", "a-value", "b"} {
		r, err := table.Route(&postrider.Message{Topic: topic, Type: "t"})
		if err != nil || r.Schema.Subject != topic+"-value" {
			t.Errorf("topic %s has the subject %q, error %v", topic, r.Schema.Subject, err)
		}
	}
}
