package awsbroker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/envelope"
)

// service is what ElasticMQ cannot be: a queue that throttles, denies, fails single
// entries and loses answers. It knows one queue, orders.fifo.
type service struct {
	*httptest.Server

	mu     sync.Mutex
	answer func(call) reply // nil: everything is accepted
	calls  []call

	settings string           // the answer to GetQueueAttributes
	stored   []map[string]any // the answer to the next ReceiveMessage
}

type call struct {
	action  string
	entries []string // the payloads of a batch, or its receipt handles
	n       int      // the number of this action's call, from 1

	attempt    string          // of a ReceiveMessage
	owner      string          // of a GetQueueUrl
	queue      string          // of a GetQueueUrl
	hidden     []int           // visibility timeouts of a batch
	left       <-chan struct{} // closed when the caller has gone
	groups     []string
	attributes []map[string]map[string]string
}

// reply is what the service does with a call. status 0: it accepts all entries but
// those that fail names by their payload; -1: it takes the call and loses the answer.
type reply struct {
	status        int
	code, message string
	after         string // Retry-After
	fail          map[string]failure
}

type failure struct {
	code   string
	sender bool
}

func fakeService(t *testing.T, answer func(call) reply) *service {
	t.Helper()
	s := &service{answer: answer}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *service) url() string { return "sqs://key:secret@us-east-1?endpoint=" + s.URL }

func (s *service) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var in struct {
		ReceiveRequestAttemptId, QueueName, QueueOwnerAWSAccountId string

		Entries []struct {
			Id, MessageBody, ReceiptHandle string
			MessageGroupId                 string
			VisibilityTimeout              int
			MessageAttributes              map[string]map[string]string
		}
	}
	_ = json.Unmarshal(body, &in)
	c := call{
		action:  strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS."),
		attempt: in.ReceiveRequestAttemptId, queue: in.QueueName, owner: in.QueueOwnerAWSAccountId, left: r.Context().Done(),
	}
	for _, e := range in.Entries {
		c.entries = append(c.entries, e.MessageBody+e.ReceiptHandle)
		c.groups = append(c.groups, e.MessageGroupId)
		c.hidden = append(c.hidden, e.VisibilityTimeout)
		c.attributes = append(c.attributes, e.MessageAttributes)
	}
	if c.action == "" { // STS speaks an older protocol
		c.action = "AssumeRole"
	}
	s.mu.Lock()
	for _, before := range s.calls {
		if before.action == c.action {
			c.n++
		}
	}
	c.n++
	s.calls = append(s.calls, c)
	answer := s.answer
	s.mu.Unlock()
	a := answer(c)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	switch {
	case a.status == -1:
		panic(http.ErrAbortHandler)
	case a.status != 0:
		if a.after != "" {
			w.Header().Set("Retry-After", a.after)
		}
		w.WriteHeader(a.status)
		if c.action == "AssumeRole" {
			fmt.Fprintf(w, `<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>`, a.code, a.message)
			return
		}
		fmt.Fprintf(w, `{"__type":"com.amazonaws.sqs#%s","message":%q}`, a.code, a.message)
	case strings.HasSuffix(c.action, "Batch"):
		out := map[string][]map[string]any{"Successful": {}, "Failed": {}}
		for _, e := range in.Entries {
			if f, ok := a.fail[e.MessageBody+e.ReceiptHandle]; ok {
				out["Failed"] = append(out["Failed"], map[string]any{"Id": e.Id, "Code": f.code, "SenderFault": f.sender, "Message": "no"})
			} else {
				out["Successful"] = append(out["Successful"], map[string]any{"Id": e.Id, "MessageId": e.Id})
			}
		}
		_ = json.NewEncoder(w).Encode(out)
	case c.action == "ReceiveMessage":
		s.mu.Lock()
		out := map[string]any{"Messages": s.stored}
		s.stored = nil
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(out)
	case c.action == "GetQueueAttributes":
		fmt.Fprint(w, s.settings)
	default:
		fmt.Fprintf(w, `{"QueueUrl":"%s/000000000000/orders.fifo"}`, s.URL)
	}
}

// sent are the payloads of all batches, in the order of the calls.
func (s *service) sent() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		all = append(all, c.entries...)
	}
	return all
}

// of returns the calls of an action.
func (s *service) of(action string) (all []call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.action == action {
			all = append(all, c)
		}
	}
	return all
}

func deliver(t *testing.T, s *service, msgs ...postrider.Message) []error {
	t.Helper()
	sink := open(t, s.url(), &awsbroker.SinkOptions{Timeout: 5 * time.Second})
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	if errs == nil {
		errs = make([]error, len(msgs))
	}
	return errs
}

func message(n int, key, payload string) postrider.Message {
	return postrider.Message{ID: fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", n), Topic: "orders", Key: key, Payload: []byte(payload)}
}

// TestPartialFailure: a batch in which entries fail one by one is answered with HTTP
// 200. Nothing of a key is sent behind its failed entry, and the other keys continue.
//
// Promises: L, O
func TestPartialFailure(t *testing.T) {
	t.Parallel()
	for _, f := range []failure{{"InternalError", false}, {"InvalidMessageContents", true}, {"RequestThrottled", false}, {"Strange", false}} {
		s := fakeService(t, func(call) reply { return reply{fail: map[string]failure{"a2": f}} })
		errs := deliver(t, s, message(1, "a", "a1"), message(2, "b", "b1"), message(3, "a", "a2"), message(4, "b", "b2"), message(5, "a", "a3"), message(6, "b", "b3"))
		for i, err := range errs {
			if bad := i == 2 || i == 4; bad != (err != nil) {
				t.Errorf("%s: message %d: %v", f.code, i, err)
			}
		}
		for _, payload := range s.sent() {
			if payload == "a3" {
				t.Errorf("%s: a3 was sent behind a2, which failed", f.code)
			}
		}
		want := map[string]broker.Class{"InternalError": broker.ClassUnknown, "InvalidMessageContents": broker.ClassRejected, "RequestThrottled": broker.ClassThrottled, "Strange": broker.ClassFailed}[f.code]
		if got := broker.Classify(errs[2]).Class; got != want {
			t.Errorf("%s is %v, want %v", f.code, got, want)
		}
	}
}

// TestOneRequestPerKey: no request has two messages of a key, whatever room it has.
func TestOneRequestPerKey(t *testing.T) {
	t.Parallel()
	s := fakeService(t, func(call) reply { return reply{} })
	errs := deliver(t, s, message(1, "a", "a1"), message(2, "a", "a2"), message(3, "b", "b1"), message(4, "", "x"), message(5, "", "y"))
	for _, err := range errs {
		must(t, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if text := strings.Join(c.entries, " "); strings.Contains(text, "a1") && strings.Contains(text, "a2") {
			t.Errorf("one request has a1 and a2: %s", text)
		}
	}
}

// TestWholeRefusal: a request that is refused for what it holds is repeated message
// by message, and only the reason is rejected.
func TestWholeRefusal(t *testing.T) {
	t.Parallel()
	s := fakeService(t, func(c call) reply {
		if strings.Contains(strings.Join(c.entries, " "), "bad") {
			return reply{status: 400, code: "InvalidMessageContents", message: "no"}
		}
		return reply{}
	})
	errs := deliver(t, s, message(1, "a", "good"), message(2, "b", "bad"), message(3, "c", "fine"))
	if errs[0] != nil || errs[2] != nil || broker.Classify(errs[1]).Class != broker.ClassRejected {
		t.Fatal(errs)
	}
}

// TestAnswers: the class, code and remedy of what the service answers.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		at    string // the action that is answered so
		reply reply
		class broker.Class
		code  string
		says  string
	}{
		{"throttled", "SendMessageBatch", reply{status: 400, code: "RequestThrottled", message: "slow down"}, broker.ClassThrottled, "THROTTLED", ""},
		{"throttled with a time", "SendMessageBatch", reply{status: 429, code: "ThrottlingException", after: "7"}, broker.ClassThrottled, "THROTTLED", ""},
		{"send denied", "SendMessageBatch", reply{status: 403, code: "AccessDeniedException", message: "no"}, broker.ClassOutage, "ACCESS_DENIED", "allow sqs:SendMessage on queue orders.fifo"},
		{"look denied", "GetQueueUrl", reply{status: 403, code: "AccessDenied", message: "no"}, broker.ClassOutage, "ACCESS_DENIED", "allow sqs:GetQueueUrl on queue orders.fifo"},
		{"expired", "SendMessageBatch", reply{status: 403, code: "ExpiredToken"}, broker.ClassOutage, "CREDENTIALS", "check access key, role"},
		{"key of the queue", "SendMessageBatch", reply{status: 400, code: "KMS.AccessDeniedException"}, broker.ClassOutage, "KMS", "kms:GenerateDataKey"},
		{"missing", "GetQueueUrl", reply{status: 400, code: "QueueDoesNotExist"}, broker.ClassOutage, "QUEUE_MISSING", "--queue-name orders.fifo --attributes FifoQueue=true"},
		{"odd name", "GetQueueUrl", reply{status: 400, code: "InvalidParameterValue"}, broker.ClassOutage, "InvalidParameterValue", ""},
		{"broken", "SendMessageBatch", reply{status: 500, code: "InternalError"}, broker.ClassUnknown, "InternalError", ""},
		{"away", "SendMessageBatch", reply{status: 503, code: "ServiceUnavailable"}, broker.ClassOutage, "ServiceUnavailable", ""},
		{"lost", "SendMessageBatch", reply{status: -1}, broker.ClassUnknown, "", "no answer"},
		{"new to us", "SendMessageBatch", reply{status: 400, code: "NeverHeardOf"}, broker.ClassOutage, "NeverHeardOf", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := fakeService(t, func(got call) reply {
				if got.action == c.at {
					return c.reply
				}
				return reply{}
			})
			errs := deliver(t, s, message(1, "a", "a1"), message(2, "a", "a2"))
			e := broker.Classify(errs[0])
			if e == nil || e.Class != c.class || e.Code != c.code || !strings.Contains(e.Error(), c.says) {
				t.Fatalf("answered %v (class %v, code %s), want %v %s and %q", e, e.Class, e.Code, c.class, c.code, c.says)
			}
			if c.reply.after != "" && e.RetryAfter != 7*time.Second {
				t.Errorf("retry after %v, the service says 7 s", e.RetryAfter)
			}
			if sent := s.sent(); len(sent) > 1 {
				t.Errorf("sent %v: something behind a1, or a1 twice", sent)
			}
		})
	}
}

// TestDenied: credentials that may not list queues are accepted ones, rejected ones
// need a person, and Probe names what is missing.
func TestDenied(t *testing.T) {
	t.Parallel()
	code := "AccessDenied"
	s := fakeService(t, func(call) reply { return reply{status: 403, code: code, message: "no"} })
	info := open(t, s.url(), nil).Info()
	if err := info.Ping(t.Context()); err != nil {
		t.Errorf("ping without the right to list queues: %v", err)
	}
	lacking, err := info.Probe(t.Context(), []string{"orders", "or.ders"})
	if err != nil || lacking[0] == nil || !strings.Contains(lacking[0].Error(), "allow sqs:GetQueueUrl") || lacking[1] == nil {
		t.Errorf("probe: %v, %v", lacking, err)
	}
	code = "SignatureDoesNotMatch"
	for what, err := range map[string]error{"ping": info.Ping(t.Context()), "probe": second(info.Probe(t.Context(), []string{"orders"}))} {
		if !isRefused(err) {
			t.Errorf("%s with wrong credentials: %v", what, err)
		}
	}
}

func second(_ []error, err error) error { return err }

func isRefused(err error) bool { return errors.Is(err, broker.ErrRefused) }

// TestGroupOfKey: all messages of a key have one group, the message whose id equals the
// key too. Each is received with its own key, and a message without a key without one.
func TestGroupOfKey(t *testing.T) {
	t.Parallel()
	for _, format := range []envelope.Format{envelope.Plain, envelope.CloudEvents, envelope.CloudEventsStructured} {
		s := fakeService(t, func(call) reply { return reply{} })
		sink := open(t, s.url(), &awsbroker.SinkOptions{Route: func(m *postrider.Message) (envelope.Route, error) {
			return envelope.Route{Topic: m.Topic, Key: m.Key, Format: format}, nil
		}})
		msgs := []postrider.Message{message(1, "", "same"), message(2, "", "other"), message(3, "", "none")}
		for i := range msgs {
			msgs[i].Type, msgs[i].Time = "t", time.Unix(1, 0)
		}
		key := msgs[0].ID
		msgs[0].Key, msgs[1].Key = key, key
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
			t.Fatal(format, errs)
		}
		want := make(map[string]string) // by id
		for _, m := range msgs {
			want[m.ID] = m.Key
		}
		s.mu.Lock()
		groups := make(map[string]int)
		for _, c := range s.calls {
			for n, body := range c.entries {
				groups[c.groups[n]]++
				s.stored = append(s.stored, stored(len(s.stored), c.groups[n], body, c.attributes[n]))
			}
		}
		s.mu.Unlock()
		if len(groups) != 2 || groups[key] != 2 || groups[msgs[2].ID] != 1 {
			t.Errorf("%v: groups %v, want two messages in %s and one in %s", format, groups, key, msgs[2].ID)
		}
		from := source(t, s.url(), "orders")
		for got := 0; got < len(msgs); {
			for _, d := range receive(t, from, 10) {
				if key, known := want[d.Message.ID]; d.Err != nil || !known || d.Message.Key != key {
					t.Errorf("%v: %s is received with key %q, want %q (%v)", format, d.Message.ID, d.Message.Key, key, d.Err)
				}
				must(t, from.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
				got++
			}
		}
	}
}

// stored is a message as ReceiveMessage returns it.
func stored(n int, group, body string, attributes map[string]map[string]string) map[string]any {
	return map[string]any{
		"MessageId": fmt.Sprint("m", n), "ReceiptHandle": fmt.Sprint("h", n), "Body": body, "MessageAttributes": attributes,
		"Attributes": map[string]string{"MessageGroupId": group, "SequenceNumber": fmt.Sprint(100 + n), "ApproximateReceiveCount": "1"},
	}
}

// TestAssumeRole: an answer of STS is about the credentials, whatever its code: no
// message is rejected for it, and it denies no action on the queue. The endpoint of the
// queues is not that of STS.
func TestAssumeRole(t *testing.T) {
	for code, refused := range map[string]bool{"ValidationError": true, "AccessDenied": true, "Throttling": false} {
		t.Run(code, func(t *testing.T) {
			sts := fakeService(t, func(call) reply { return reply{status: 400, code: code, message: "no"} })
			t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
			s := fakeService(t, func(c call) reply {
				if c.action == "AssumeRole" {
					t.Error("the endpoint of the queues was asked for a role")
				}
				return reply{}
			})
			sink := open(t, s.url()+"&role=arn:aws:iam::123456789012:role/relay", nil)
			e := broker.Classify(sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}})[0])
			if e.Class != broker.ClassOutage || e.Code != "CREDENTIALS" || strings.Contains(e.Error(), "sqs:") || !strings.Contains(e.Error(), "trust policy") {
				t.Errorf("class %v, code %s: %v", e.Class, e.Code, e)
			}
			if err := sink.Info().Ping(t.Context()); err == nil || isRefused(err) != refused {
				t.Errorf("ping: %v", err)
			}
			if err := second(sink.Info().Probe(t.Context(), []string{"orders"})); err == nil || isRefused(err) != refused {
				t.Errorf("probe: %v", err)
			}
		})
	}
}

// TestSTSAway: an STS that cannot be reached is told from missing credentials, and waiting helps.
func TestSTSAway(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
	s := fakeService(t, func(call) reply { return reply{} })
	sink := open(t, s.url()+"&role=arn:aws:iam::123456789012:role/relay", nil)
	e := broker.Classify(sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}})[0])
	if e.Class != broker.ClassOutage || !strings.Contains(e.Error(), "the service of credentials cannot be reached") || strings.Contains(e.Error(), "set AWS_ACCESS_KEY_ID") {
		t.Errorf("class %v, code %s: %v", e.Class, e.Code, e)
	}
	if err := sink.Info().Ping(t.Context()); err == nil || isRefused(err) {
		t.Errorf("ping: %v", err)
	}
}

// TestWebIdentity: the token of a pod goes to STS alone, whatever the endpoint of the
// queues, which counts although the environment names another.
func TestWebIdentity(t *testing.T) {
	sts := fakeService(t, func(call) reply { return reply{status: 400, code: "AccessDenied", message: "no"} })
	other := fakeService(t, func(call) reply { return reply{} })
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("jwt"), 0o600))
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_STS": sts.URL, "AWS_ENDPOINT_URL_SQS": other.URL, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": token + "1", "AWS_SHARED_CREDENTIALS_FILE": token + "2",
		"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/pod",
	} {
		t.Setenv(name, value)
	}
	queues := fakeService(t, func(call) reply { return reply{} })
	sink := open(t, "sqs://us-east-1?endpoint="+queues.URL, nil)
	e := broker.Classify(sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}})[0])
	if e.Code != "CREDENTIALS" || len(sts.calls) == 0 || len(queues.calls) > 0 {
		t.Errorf("%v; %d requests to STS, %d to the queues", e, len(sts.calls), len(queues.calls))
	}
	known := open(t, queues.url(), nil)
	if errs := known.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}}); errs != nil || len(other.calls) > 0 || len(queues.calls) == 0 {
		t.Errorf("%v; %d requests to AWS_ENDPOINT_URL_SQS, %d to the URL's endpoint", errs, len(other.calls), len(queues.calls))
	}
}

var errExpired = errors.New("the session has expired")

// TestCredentialsLost: credentials that are lost when the queue's URL is known are an
// outage too: nothing was sent.
func TestCredentialsLost(t *testing.T) {
	t.Parallel()
	s := fakeService(t, func(call) reply { return reply{} })
	var lost atomic.Bool
	sink, err := awsbroker.NewSink(sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(s.URL),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			if lost.Load() {
				return aws.Credentials{}, errExpired
			}
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	}), nil)
	must(t, err)
	t.Cleanup(sink.Close)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(1, "a", "a1")}}); errs != nil {
		t.Fatal(errs)
	}
	lost.Store(true)
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message(2, "a", "a2")}})
	if e := broker.Classify(errs[0]); e.Class != broker.ClassOutage || e.Code != "CREDENTIALS" || !errors.Is(e, errExpired) {
		t.Errorf("class %v, code %s: %v", e.Class, e.Code, e)
	}
	if sent := s.sent(); len(sent) != 1 {
		t.Errorf("sent %v", sent)
	}
}

// TestSettleRefused: an entry whose receipt is void is over. Any other refused entry
// is an error, and settling it again is tried.
func TestSettleRefused(t *testing.T) {
	t.Parallel()
	for code, over := range map[string]bool{
		"ReceiptHandleIsInvalid": true, "AWS.SimpleQueueService.MessageNotInflight": true, "InvalidParameterValue": true,
		"AccessDenied": false, "UnsupportedOperation": false,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			s := fakeService(t, func(c call) reply {
				if c.n == 1 {
					return reply{fail: map[string]failure{"h0": {code, true}}}
				}
				return reply{}
			})
			s.stored = []map[string]any{stored(0, "g", "b", nil)}
			from := source(t, s.url(), "orders")
			d := receive(t, from, 1)[0]
			err := from.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}})
			if over != (err == nil) {
				t.Fatalf("the first settle: %v", err)
			}
			if err != nil && (broker.Classify(err).Class == broker.ClassRejected || strings.Contains(err.Error(), "SendMessage")) {
				t.Errorf("the first settle: %v", err)
			}
			must(t, from.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
			s.mu.Lock()
			defer s.mu.Unlock()
			deletes := 0
			for _, c := range s.calls {
				if c.action == "DeleteMessageBatch" {
					deletes++
				}
			}
			if want := map[bool]int{true: 1, false: 2}[over]; deletes != want {
				t.Errorf("%d requests to delete, want %d", deletes, want)
			}
		})
	}
}
