package natsbroker

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestAnswers: only an unmistakable acknowledgement counts as one.
func TestAnswers(t *testing.T) {
	noStream := nats.Header{"Status": {"503"}}
	for _, tt := range []struct {
		data   string
		header nats.Header
		want   error
		plain  bool
	}{
		{data: `{"stream":"S","seq":12}`, plain: true},
		{data: `{"stream":"S","seq":12,"duplicate":true}`, plain: true},
		{data: `{"stream":"S", "domain":"hub", "seq":12}`},
		{data: `{"stream":"a\"b","seq":12}`},
		{data: `{"type":"io.nats.jetstream.api.v1.pub_ack_response","stream":"S","seq":1}`},
		{data: `{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}`, want: new(jetstream.APIError)},
		{data: `{"stream":"S","seq":0,"error":{"code":503,"err_code":10077}}`, want: new(jetstream.APIError)},
		{data: `{"stream":"","seq":12}`, want: jetstream.ErrInvalidJSAck},
		{data: `{"stream":"S","seq":}`, want: jetstream.ErrInvalidJSAck},
		{data: `{"stream":"S","seq":12`, want: jetstream.ErrInvalidJSAck},
		{data: `{"stream":"S","seq":12}{"error":{}}`, want: jetstream.ErrInvalidJSAck},
		{data: `{}`, want: jetstream.ErrInvalidJSAck},
		{data: ``, want: jetstream.ErrInvalidJSAck},
		{data: ``, header: noStream, want: jetstream.ErrNoStreamResponse},
	} {
		if got := plainAck([]byte(tt.data)); got != tt.plain {
			t.Errorf("%s: plain %v", tt.data, got)
		}
		err := meaning(&nats.Msg{Data: []byte(tt.data), Header: tt.header})
		var api *jetstream.APIError
		if _, is := tt.want.(*jetstream.APIError); is && errors.As(err, &api) { //nolint:errorlint // the table's own
			continue
		}
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.data, err, tt.want)
		}
	}
}

// TestLateAnswer: a late answer to an abandoned message is not taken for the answer to
// the message that has its slot now.
func TestLateAnswer(t *testing.T) {
	a := newAcks(nil, 1)
	d := &delivery{next: make([]int32, 2), bell: make(chan struct{}, 1)}
	reply := func(t ticket) *nats.Msg {
		return &nats.Msg{Subject: t.reply("_INBOX.x."), Data: []byte(`{"stream":"S","seq":1}`)}
	}
	first, _ := a.take(d, 0, 0)
	if none, room := a.take(d, 1, 0); none != 0 || room != nil {
		t.Fatal("two messages in one slot")
	}
	a.forget(first)
	second, _ := a.take(d, 1, 0)
	a.answered(reply(first))
	a.answered(&nats.Msg{Subject: "_INBOX.x.!"})
	a.answered(&nats.Msg{Subject: "_INBOX.x.zzzzzzzzzzz"})
	if len(d.got) != 0 {
		t.Fatalf("taken for the second message's: %v", d.got)
	}
	a.answered(reply(second))
	a.answered(reply(second))
	if len(d.got) != 1 || d.got[0] != (answer{i: 1}) || d.open != 0 || len(a.free) != 1 {
		t.Errorf("answers %v, %d open, %d slots free", d.got, d.open, len(a.free))
	}
}
