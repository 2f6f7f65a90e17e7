package registry_test

import (
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

// TestApicurio is the whole path against a real registry: register with references, frame,
// and what it answers to questions about what it does not have.
func TestApicurio(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") == "" {
		t.Skip("Apicurio Registry starts in the matrix only: POSTRIDER_MATRIX=1")
	}
	server := testserver.StartApicurio(t)
	c := open(t, server.URL(), nil)
	ctx := t.Context()
	shared := registry.Schema{Subject: "_shared/money.proto", Version: 1, Type: registry.Protobuf, Text: "syntax = \"proto3\";\npackage shared;\nmessage Money { int64 cents = 1; }\n"}
	paid := registry.Schema{
		Subject: "paid-value", Version: 1, Type: registry.Protobuf,
		Text:       "syntax = \"proto3\";\npackage shop;\nimport \"_shared/money.proto\";\nmessage Head {}\nmessage Paid { shared.Money total = 1; }\n",
		References: []registry.Reference{{Name: "_shared/money.proto", Subject: "_shared/money.proto", Version: 1}},
	}
	placed := registry.Schema{Subject: "orders-value", Version: 1, Type: registry.Avro, Text: avro}
	for _, s := range []registry.Schema{shared, paid, placed} {
		for _, already := range []bool{false, true} {
			p, err := c.Plan(ctx, &s)
			if err != nil || p.Registered != already || len(p.Incompatible) > 0 {
				t.Fatalf("plan of %s: %+v, %v", s.Subject, p, err)
			}
			if p, err = c.Register(ctx, &s); err != nil || p.ID == 0 || p.Version != 1 || !p.Registered {
				t.Fatalf("register %s: %+v, %v", s.Subject, p, err)
			}
		}
	}
	setup, err := sr.NewClient(sr.URLs(server.URL()))
	if err != nil {
		t.Fatal(err)
	}
	if got := setup.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatBackward}, "orders-value"); got[0].Err != nil {
		t.Fatal(got[0].Err)
	}
	broken := registry.Schema{Subject: "orders-value", Version: 2, Type: registry.Avro, Text: strings.Replace(avro, "qty", "quantity", 1)}
	if p, err := c.Plan(ctx, &broken); err != nil || p.Registered || len(p.Incompatible) == 0 {
		t.Errorf("an incompatible schema: %+v, %v", p, err)
	}
	if _, err := c.Register(ctx, &broken); err == nil {
		t.Error("an incompatible schema was registered")
	}
	broken.Version, broken.Text = 4, strings.Replace(avro, `"int"`, `"long"`, 1)
	if _, err := c.Plan(ctx, &broken); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a version that the registry would not give: %v", err)
	}
	to := &wire{router: c.Router(rules(t, route.Rule{Topic: "{type}", Record: "shop.Paid"})), sent: map[string][]byte{}}
	errs := c.Sink(to).Deliver(ctx, broker.Batch{Messages: []postrider.Message{
		message("a", "", "orders", 1), message("b", "", "paid", 1), message("c", "", "orders", 9), message("d", "", "none", 1),
	}})
	if len(errs) != 4 || errs[0] != nil || errs[1] != nil || broker.Classify(errs[2]).Code != registry.CodeUnknown || broker.Classify(errs[3]).Code != registry.CodeSubject {
		t.Fatal(errs)
	}
	for id, behind := range map[string]string{"a": "payload", "b": "\x02\x02payload"} {
		got, rest, ok := registry.FrameID(to.sent[id])
		if !ok || got == 0 || string(rest) != behind {
			t.Errorf("%s: %q", id, to.sent[id])
		}
		if err := c.Resolve(ctx, envelope.Schema{Framing: envelope.Framed, Version: int32(got)}); err != nil {
			t.Error(err)
		}
	}
	server.Close()
	err = c.Resolve(ctx, envelope.Schema{Subject: "orders-value", Version: 3})
	if wrong := (*registry.Error)(nil); !errors.As(err, &wrong) || !wrong.Down() {
		t.Errorf("a registry that is gone: %v", err)
	}
}

// TestJavaReadsFrames: a Java deserializer in Confluent's form reads our frames, and we read
// those of its serializer.
func TestJavaReadsFrames(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") == "" {
		t.Skip("Apicurio Registry starts in the matrix only: POSTRIDER_MATRIX=1")
	}
	java := testserver.Program{Command: append(testserver.Java(t, "testdata/java"), "testdata/java/Frames.java")}
	server := testserver.StartApicurio(t)
	c := open(t, server.URL(), nil)
	if _, err := c.Register(t.Context(), &registry.Schema{Subject: "orders-value", Version: 1, Type: registry.Avro, Text: avro}); err != nil {
		t.Fatal(err)
	}
	m := message("a", "", "x", 1)
	m.Payload = []byte{14} // qty 7
	to := &wire{router: c.Router(rules(t, route.Rule{})), sent: map[string][]byte{}}
	if errs := c.Sink(to).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
		t.Fatal(errs)
	}
	out, err := java.Run(t.Context(), "", "http://"+server.Addr+"/apis/registry/v2", hex.EncodeToString(to.sent["a"]), avro)
	if err != nil {
		t.Fatal(err)
	}
	read, theirs, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if read != `{"qty": 7}` {
		t.Errorf("Java reads %s", read)
	}
	frame, err := hex.DecodeString(theirs)
	if err != nil {
		t.Fatal(err)
	}
	in := &inbound{all: []broker.Delivery{record("orders", string(frame))}}
	got, err := c.Source(in, nil).Receive(t.Context(), 1)
	if err != nil || got[0].Err != nil || got[0].Message.Type != "Placed" || got[0].Message.SchemaVersion != 1 || string(got[0].Message.Payload) != "\x54" {
		t.Errorf("of %x: %+v, %v", frame, got, err)
	}
}
