package interop

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"strings"
	"testing"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
)

// TestSQS reads what the sink writes with Amazon's own clients for Python and JavaScript,
// by the lines of awsbroker's README: what they see decodes to what was sent.
func TestSQS(t *testing.T) {
	matrix(t)
	url := "sqs://key:secret@us-east-1?endpoint=http://" + testserver.SharedElasticMQ(t).Addr
	target, err := awsbroker.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := target.Config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := sqs.NewFromConfig(conf)
	readers(t, map[string]string{"python": "sqs_reader.py", "javascript": "sqs.mjs"}, func(t *testing.T, topic string, route envelope.Router) (broker.Sink, []string, []string) {
		t.Helper()
		_, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(topic + ".fifo"), Attributes: map[string]string{"FifoQueue": "true"}})
		if err != nil {
			t.Fatal(err)
		}
		sink, err := awsbroker.Open(url, &awsbroker.SinkOptions{Route: route})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sink.Close)
		return sink, []string{target.Endpoint, topic + ".fifo"}, nil
	})
}

// TestPubSub is TestSQS with Google's own clients, on Google's emulator.
func TestPubSub(t *testing.T) {
	matrix(t)
	addr, project := testserver.SharedPubSub(t).Addr, "interop-project"
	url := "pubsub://" + project + "?emulator=" + addr
	target, err := pubsubbroker.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	topics, err := pubsub.NewTopicAdminClient(t.Context(), target.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer topics.Close()
	subs, err := pubsub.NewSubscriptionAdminClient(t.Context(), target.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer subs.Close()
	readers(t, map[string]string{"python": "pubsub_reader.py", "javascript": "pubsub.mjs"}, func(t *testing.T, topic string, route envelope.Router) (broker.Sink, []string, []string) {
		t.Helper()
		name := "projects/" + project + "/topics/" + topic
		_, err := topics.CreateTopic(t.Context(), &pubsubpb.Topic{Name: name})
		if err == nil {
			_, err = subs.CreateSubscription(t.Context(), &pubsubpb.Subscription{
				Name: "projects/" + project + "/subscriptions/" + topic, Topic: name, EnableMessageOrdering: true,
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		sink, err := pubsubbroker.Open(url, &pubsubbroker.SinkOptions{Route: route})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sink.Close)
		return sink, []string{project, topic}, []string{"PUBSUB_EMULATOR_HOST=" + addr}
	})
}

// readers sends messages in every format, and reads them with a program of each language.
// prepare makes a topic and returns its sink, and the arguments and environment of the
// programs.
func readers(t *testing.T, files map[string]string, prepare func(*testing.T, string, envelope.Router) (broker.Sink, []string, []string)) {
	t.Helper()
	for language, file := range files {
		program := testserver.Program{Dir: language}
		if language == "python" {
			program.Command = []string{testserver.PythonVenv(t, language), file}
		} else {
			node, libs := testserver.NodeModules(t, language)
			program.Command = []string{node, file, libs}
		}
		for _, format := range []envelope.Format{envelope.Plain, envelope.CloudEvents, envelope.CloudEventsStructured} {
			t.Run(language+" "+format.String(), func(t *testing.T) {
				topic := "r" + strings.ToLower(rand.Text())
				sink, args, env := prepare(t, topic, func(m *postrider.Message) (envelope.Route, error) {
					return envelope.Route{Topic: m.Topic, Key: m.Key, Format: format}, nil
				})
				reads(t, sink, topic, func(count int) (string, error) {
					p := program
					p.Env = env
					return p.Run(t.Context(), "", append(args, fmt.Sprint(count))...)
				})
			})
		}
	}
}

func reads(t *testing.T, sink broker.Sink, topic string, read func(count int) (string, error)) {
	t.Helper()
	sent := make(map[string]postrider.Message)
	many := texts(topic)
	for i := range 14 { // more headers than SQS has attributes
		many[0].Headers[fmt.Sprintf("x-%d", i)] = many[2].Key
	}
	many[1].Payload = nil
	last := &many[len(many)-1] // an outbox refuses such a key and headers; only the payload may have any bytes
	last.Key, last.Headers = "last", nil
	for _, m := range many {
		sent[m.ID] = m
	}
	if errs := sink.Deliver(context.WithoutCancel(t.Context()), broker.Batch{Messages: many}); errs != nil {
		t.Fatal(errs)
	}
	out, err := read(len(many))
	if err != nil {
		t.Fatal(err)
	}
	got := records(t, out)
	if len(got) != len(sent) {
		t.Fatalf("%d messages were read, want %d:\n%s", len(got), len(sent), out)
	}
	for i, r := range got {
		r.Topic, r.Origin = topic, fmt.Sprint("reader:", i)
		var headers []envelope.Header
		for _, h := range r.Headers {
			if h.Name == "key" && !strings.HasPrefix(string(h.Value), "sha256.") {
				r.Key = string(h.Value)
			}
			if h.Name != "key" {
				headers = append(headers, h)
			}
		}
		r.Headers = headers
		m, err := sink.Info().Codec.Decode(r)
		want := sent[m.ID]
		if err != nil || want.ID == "" || m.Key != want.Key || string(m.Payload) != string(want.Payload) || !maps.Equal(m.Headers, want.Headers) {
			t.Errorf("read %+v, %v; sent %+v", m, err, want)
		}
	}
}
