package brokertest

import (
	"bytes"
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
)

func dataCases() []Case {
	return []Case{
		{"sink/headers", "headers arrive byte for byte, all of them, and none commands the broker", sinkHeaders},
		{"sink/key-bytes", "keys are compared and carried by their bytes", sinkKeyBytes},
		{"sink/time", "the time of a message is carried and decides nothing, however old or far ahead it is", sinkTime},
		{"sink/declared", "what Info declares as too much is rejected, and the most of it is accepted", sinkDeclared},
		{"sink/injection", "the name of a topic is a name, whatever it holds", sinkInjection},
		{"sink/empty", "a message without payload arrives as one", sinkEmpty},
		{"sink/limit", "up to one size every payload is accepted, above it each is rejected", sinkLimit},
		{"sink/keys", "a call may have ten thousand keys", sinkKeys},
		{"sink/dedup", "within its dedup window the broker itself drops a repeated id, and not what a person sends again", sinkDedup},
		{"sink/pipes", "a message that two pipes send, or two routes, is stored once for each of them", sinkPipes},
		{"sink/formats", "each wire format arrives, and the adapter's own source reads it", sinkFormats},
		{"sink/scope", "a destination that is down holds up its own messages and the later ones of their keys, nothing else", sinkScope},
	}
}

// arrive delivers msgs: those within the limits of Info must be accepted and
// arrive unchanged, the others must be rejected and not arrive.
func arrive(ctx context.Context, env *Env, msgs []postrider.Message) error {
	fit, over := fitting(env.Sink, msgs)
	for i := range over {
		if err := refused(ctx, env.Sink, over[i]); err != nil {
			return err
		}
	}
	if err := accept(ctx, env.Sink, fit); err != nil {
		return err
	}
	return whole(ctx, env, fit)
}

// fitting splits messages by the limits of Info.
func fitting(s broker.Sink, msgs []postrider.Message) (fit, over []postrider.Message) {
	door := route.Door{Info: s.Info()}
	for _, m := range msgs {
		if door.Check(&m) == nil {
			fit = append(fit, m)
		} else {
			over = append(over, m)
		}
	}
	return fit, over
}

// refused delivers a message above a limit of Info.
func refused(ctx context.Context, s broker.Sink, m postrider.Message) error {
	errs, err := run(ctx, s, []postrider.Message{m}, 5*time.Second)
	if err != nil {
		return err
	}
	if e := broker.Classify(errs[0]); e == nil || e.Class != broker.ClassRejected {
		door := route.Door{Info: s.Info()}
		return fmt.Errorf("want rejected, because of %w; the answer is %v", door.Check(&m), errs[0])
	}
	return nil
}

// sinkTime sends old messages, as after a long outage, and some from wrong
// clocks.
func sinkTime(ctx context.Context, env *Env) error {
	times := []time.Time{
		time.Date(1961, 4, 12, 6, 7, 0, 0, time.UTC), time.Unix(0, 1), time.Date(2001, 9, 9, 1, 46, 40, 123456789, time.FixedZone("", 5*3600+1800)),
		time.Now().Add(-366 * 24 * time.Hour), time.Now().Add(25 * time.Hour), time.Date(2120, 2, 29, 23, 59, 59, 999999999, time.UTC),
	}
	msgs := messages(env.Topic, len(times), len(times))
	for i := range msgs {
		msgs[i].Time = times[i].Round(0)
	}
	return arrive(ctx, env, msgs)
}

// sinkDeclared finds the limits of Info's own check and sends messages at each limit and
// one above.
func sinkDeclared(ctx context.Context, env *Env) error {
	door := route.Door{Info: env.Sink.Info()}
	measures := []struct {
		most int
		make func(m *postrider.Message, n int)
	}{
		{postrider.MaxKeyLen, func(m *postrider.Message, n int) { m.Key = strings.Repeat("k", n) }},
		{postrider.MaxHeaders, func(m *postrider.Message, n int) {
			m.Headers = make(map[string]string)
			for i := range n {
				m.Headers[fmt.Sprint("h", i)] = "v"
			}
		}},
		{postrider.MaxHeaderBytes - 1, func(m *postrider.Message, n int) { m.Headers = map[string]string{"h": strings.Repeat("v", n)} }},
		{env.TooLarge, func(m *postrider.Message, n int) { m.Payload = make([]byte, n) }},
	}
	var over []postrider.Message
	for i, by := range measures {
		sized := func(n int) postrider.Message {
			m := messages(env.Topic, 1, 1)[0]
			m.ID, m.Key = id(2*i+n%2), fmt.Sprint("measure ", i)
			by.make(&m, n)
			return m
		}
		top := sort.Search(by.most, func(n int) bool { m := sized(n + 1); return door.Check(&m) != nil })
		if top == by.most {
			continue // no limit
		}
		over = append(over, sized(top+1))
		if most := sized(top); len(most.Payload) < env.Largest { // only the sink knows how large a payload may be
			if err := accept(ctx, env.Sink, []postrider.Message{most}); err != nil {
				return err
			}
		}
	}
	if len(over) == 0 {
		return notApplicable("Info declares no limit")
	}
	for _, m := range over {
		if err := refused(ctx, env.Sink, m); err != nil {
			return err
		}
	}
	return nil
}

func sinkHeaders(ctx context.Context, env *Env) error {
	return arrive(ctx, env, headed(env.Topic))
}

// headed returns messages with every kind of header that postrider.Message allows: each
// character of a name, each byte of a value, and names
// with a meaning for some broker or wire format.
func headed(topic string) []postrider.Message {
	sets := []map[string]string{
		{"a": "", "b": " leading and trailing ", "c": "tab\there", "d": "a:b;c=d,e\"f\"", "e": "日本語 ünïcode \u2028", "f": "100%41 %zz"},
		{"Traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "TRACESTATE": "x=1", "x-Odd-Case": "y", "X-odd-case": "z"},
		{"Nats-Rollup": "all", "Nats-Expected-Last-Sequence": "99", "Nats-TTL": "1s", "Nats-Msg-Id": "other", "nats-msg-id": "same"},
		{"id": "other", "key": "other", "ce-id": "7", "content-type": "text/html", "!#$%&'*+-.^_`|~": "every token character"},
		{"long": strings.Repeat("v", 8<<10), strings.Repeat("n", 200): "long name"},
		{"x-delay": "99999999", "CC": "elsewhere", "BCC": "elsewhere", "x-death": "1", "x-match": "any", "expiration": "1", "MAXLEN": "0", "NOMKSTREAM": "", "payload": "p"},
		{"Host": "elsewhere", "Content-Length": "1", "Transfer-Encoding": "chunked", "Connection": "close", "webhook-id": "w", "webhook-signature": "v1,x", "Authorization": "none", "Idempotency-Key": "i"},
		{"ce_id": "8", "ce_specversion": "0.3", "ce-specversion": "9", "cloudEvents_type": "y", "__TypeId__": "z"},
		{},
		{},
		{},
	}
	few := sets[len(sets)-3:]
	for i := range postrider.MaxHeaders {
		few[0][fmt.Sprintf("h%02d", i)] = fmt.Sprint(i)
	}
	for c := '!'; c < 0x7f; c++ { // in two messages: one has at most 64 headers
		if c != ':' {
			few[1+c%2][fmt.Sprintf("n%cn", c)] = string(c)
		}
	}
	var controls strings.Builder
	for c := rune(1); c <= ' '; c++ {
		if c != '\r' && c != '\n' {
			controls.WriteRune(c)
		}
	}
	few[1]["controls"] = controls.String() + "\x7f\u0080\u00a0\ufeff"
	msgs := messages(topic, len(sets), len(sets))
	for i := range msgs {
		msgs[i].Headers = sets[i]
	}
	return msgs
}

// odd returns messages with unusual but allowed keys, types and payloads. No
// two keys are the same, however similar they look.
func odd(topic string) []postrider.Message {
	keys := []string{
		"a", "A", " a", "a ", "a\t", "a\r\n", "\x01\x1f\x7f", "\u00e9", "e\u0301", "ключ", "🗝\ufe0f", "\ufffe\U0010ffff", "%41", "%", "+",
		"a b", "a/b", "a.b", "*", ">", "#", "a:b", "a,b", "a=b;c", "\"", "\\", "'", "$1", "{a}", "{b}", "null", "0", "-", strings.Repeat("k", postrider.MaxKeyLen),
		strings.Repeat("ж", postrider.MaxKeyLen/2), strings.Repeat("\x01", postrider.MaxKeyLen),
	}
	msgs := messages(topic, 2*len(keys), len(keys))
	for i := range msgs {
		msgs[i].ID, msgs[i].Key = id(5000+i), keys[i%len(keys)]
	}
	msgs[0].Type, msgs[1].Type = strings.Repeat("t", postrider.MaxTypeLen), "a b\tc\u00e9 \"q\""
	msgs[2].ContentType, msgs[3].ContentType = "text/plain; charset=\"utf-8\"", strings.Repeat("c", postrider.MaxContentTypeLen)
	msgs[4].Payload = []byte{0, 0xff, '\r', '\n', 0x80}
	msgs[5].Payload, msgs[6].Payload = nil, []byte("\r\n$5\r\nhello\r\n")
	return msgs
}

func sinkKeyBytes(ctx context.Context, env *Env) error {
	return arrive(ctx, env, odd(env.Topic))
}

// sinkInjection sends to topics whose names would be commands for a broker that parsed
// them.
func sinkInjection(ctx context.Context, env *Env) error {
	names := []string{
		"*", ">", env.Topic + ".>", env.Topic + ".*", "." + env.Topic, env.Topic + ".", " " + env.Topic, env.Topic + " ", env.Topic + "\r\nX: y",
		env.Topic + " MAXLEN 0", env.Topic + "?a=b", env.Topic + "#", "../" + env.Topic, "//" + env.Topic, "%2e%2e", "$JS.API.STREAM.LIST", "_INBOX.x", "amq.topic",
		strings.ToUpper(env.Topic) + "~", strings.Repeat("t", postrider.MaxTopicLen), "ünïcode",
	}
	if err := accept(ctx, env.Sink, messages(env.Topic, 4, 2)); err != nil {
		return err
	}
	for i, name := range names {
		m := messages(name, 1, 1)
		m[0].ID, m[0].Key = id(100+i), fmt.Sprint("odd ", i)
		errs, err := run(ctx, env.Sink, m, 3*time.Second)
		if err != nil {
			return fmt.Errorf("topic %q: %w", name, err)
		}
		if env.Missing != "" && errs[0] == nil {
			return fmt.Errorf("topic %q does not exist, but a message was accepted", name)
		}
		if c := broker.Classify(errs[0]); c != nil && c.Class != broker.ClassOutage && c.Class != broker.ClassRejected {
			return fmt.Errorf("topic %q is answered %w: neither an outage nor rejected", name, errs[0])
		}
	}
	if err := resend(ctx, env.Sink, messages(env.Topic, 6, 2)[4:]); err != nil {
		return fmt.Errorf("after topics with odd names: %w", err)
	}
	return holds(ctx, env, 6)
}

func sinkEmpty(ctx context.Context, env *Env) error {
	msgs := messages(env.Topic, 4, 4)
	msgs[0].Payload, msgs[1].Payload = nil, []byte{}
	msgs[2].Payload, msgs[2].Key, msgs[2].Version = nil, "", 0
	msgs[3].Payload, msgs[3].ContentType, msgs[3].Type = nil, "", ""
	return arrive(ctx, env, msgs)
}

// sinkLimit finds the limit by bisection.
func sinkLimit(ctx context.Context, env *Env) error {
	if env.TooLarge == 0 {
		return notApplicable("the broker takes any size")
	}
	var taken []postrider.Message
	try := func(size int) (accepted bool, err error) {
		m := messages(env.Topic, 1, 1)
		m[0].ID, m[0].Key, m[0].Payload = id(size), fmt.Sprint("size ", size), bytes.Repeat([]byte{'x'}, size)
		errs, err := deliver(ctx, env.Sink, m)
		switch {
		case err != nil:
			return false, err
		case errs[0] == nil:
			taken = append(taken, m[0])
			return true, nil
		case broker.Classify(errs[0]).Class != broker.ClassRejected:
			return false, fmt.Errorf("a payload of %d bytes is answered %w, not rejected", size, errs[0])
		}
		return false, nil
	}
	low, high := env.Largest, env.TooLarge // accepted, rejected
	if ok, err := try(low); err != nil {
		return err
	} else if !ok {
		return fmt.Errorf("a payload of %d bytes, which the broker takes, is refused", low)
	}
	if ok, err := try(high); err != nil {
		return err
	} else if ok {
		return fmt.Errorf("a payload of %d bytes, which is too large, is accepted", high)
	}
	for high-low > 1 {
		ok, err := try((low + high) / 2)
		if err != nil {
			return err
		}
		if ok {
			low = (low + high) / 2
		} else {
			high = (low + high) / 2
		}
	}
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	if len(log) != len(taken) {
		return fmt.Errorf("%d messages were accepted, the log holds %d", len(taken), len(log))
	}
	return whole(ctx, env, taken)
}

func sinkKeys(ctx context.Context, env *Env) error {
	const keys = 10_000
	all := messages(env.Topic, 2*keys, keys)
	for at := 0; at < len(all); at += keys {
		if err := resend(ctx, env.Sink, all[at:at+keys]); err != nil { // a slow broker may leave some unknown
			return err
		}
	}
	return whole(ctx, env, all)
}

func sinkDedup(ctx context.Context, env *Env) error {
	if env.Sink.Info().DedupWindow == 0 {
		return notApplicable("the broker keeps repeated messages")
	}
	msgs := messages(env.Topic, 6, 2)
	for _, sink := range []broker.Sink{env.Sink, env.Sink, env.Second} {
		if sink == nil {
			continue
		}
		if err := accept(ctx, sink, msgs); err != nil {
			return err
		}
	}
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	if len(log) != len(msgs) {
		return fmt.Errorf("%d messages in the log after %d were sent again within the dedup window", len(log), len(msgs))
	}
	for i := range msgs {
		msgs[i].Headers = map[string]string{envelope.Generation: "1"}
	}
	if err := accept(ctx, env.Sink, msgs); err != nil {
		return err
	}
	if log, err = env.Log(ctx); err != nil {
		return err
	}
	if len(log) != 2*len(msgs) {
		return fmt.Errorf("%d messages in the log after a person replayed %d", len(log), len(msgs))
	}
	return nil
}

// piped is a sink used like the relay of a pipe uses it.
type piped struct {
	broker.Sink
	pipe string
}

func (p piped) Deliver(ctx context.Context, batch broker.Batch) []error {
	batch.Pipe = p.pipe
	return p.Sink.Deliver(ctx, batch)
}

// sinkPipes sends the same messages for two pipes, and by a second route.
func sinkPipes(ctx context.Context, env *Env) error {
	msgs := messages(env.Topic, 6, 2)
	want := 0
	send := func(pipe string, sink broker.Sink, what string) error {
		if err := accept(ctx, piped{sink, pipe}, msgs); err != nil {
			return err
		}
		want += len(msgs)
		log, err := env.Log(ctx)
		if err != nil {
			return err
		}
		if len(log) != want {
			return fmt.Errorf("%d messages in the log, want %d: %s was taken for a duplicate", len(log), want, what)
		}
		return nil
	}
	if err := send("main", env.Sink, "the first call"); err != nil {
		return err
	}
	if err := send("audit", env.Sink, "what a second pipe sent"); err != nil {
		return err
	}
	if env.Beside == "" {
		return nil
	}
	routed, err := env.Routed(ctx, func(*postrider.Message) (envelope.Route, error) {
		return envelope.Route{Topic: env.Beside}, nil
	})
	if err != nil {
		return err
	}
	return send("main", routed, "what a second route sent")
}

// sinkScope sends keys that have a message for a missing topic, before or after
// a message for the existing one.
func sinkScope(ctx context.Context, env *Env) error {
	if env.Missing == "" {
		return notApplicable("every topic exists")
	}
	msgs := messages(env.Topic, 40, 10)
	down := func(i int) bool { return i == 40 || i%10 < 3 && i/10 == 1 } // the second messages of three keys
	for i := range 40 {
		if down(i) {
			msgs[i].Topic = env.Missing
		}
	}
	msgs[39].Key, msgs[39].Version = "", 0
	for i := range 3 { // messages without a key have no order
		m := messages(env.Topic, 1, 1)[0]
		m.ID, m.Key, m.Version = id(100+i), "", 0
		if i == 0 {
			m.Topic = env.Missing
		}
		msgs = append(msgs, m)
	}
	errs, err := deliver(ctx, env.Sink, msgs)
	if err != nil {
		return err
	}
	for i, err := range errs {
		switch hit := i == 40 || i < 40 && i%10 < 3 && i/10 >= 1; {
		case down(i) && (err == nil || broker.Classify(err).Class != broker.ClassOutage || !strings.Contains(broker.Classify(err).Destination, env.Missing)):
			return fmt.Errorf("message %d, for the missing topic, is answered %v, not an outage of that destination", i, err)
		case hit && err == nil:
			return fmt.Errorf("message %d is acknowledged behind a failed one of its key", i)
		case !hit && err != nil:
			return fmt.Errorf("message %d is not affected by the missing topic, but is answered: %w", i, err)
		}
	}
	log, err := env.Log(ctx)
	if err != nil {
		return err
	}
	limit := make(map[string]int64)
	for i := range 3 {
		limit[msgs[i].Key] = 1
	}
	return noSkip(log, limit)
}
