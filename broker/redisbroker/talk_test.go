package redisbroker

import (
	"bufio"
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/postrider/postrider"
)

// TestReplies: each answer is read exactly to its end, whatever bytes come after it.
func TestReplies(t *testing.T) {
	long := strings.Repeat("x", 20_000) // more than the reader holds
	for _, tt := range []struct {
		in   string
		want reply
		bad  bool
	}{
		{in: "+OK\r\n"},
		{in: "+QUEUED\r\n"},
		{in: "-OOM command not allowed\r\n", want: reply{err: refusal("OOM command not allowed")}},
		{in: ":7\r\n", want: reply{n: 7}},
		{in: ":-7\r\n", want: reply{n: -7}},
		{in: "$15\r\n1700000000000-0\r\n"},
		{in: "$0\r\n\r\n"},
		{in: fmt.Sprintf("$%d\r\n%s\r\n", len(long), long)},
		{in: "$-1\r\n", want: reply{null: true}},
		{in: "*-1\r\n", want: reply{null: true}},
		{in: "*2\r\n:1\r\n:3\r\n", want: reply{items: []reply{{n: 1}, {n: 3}}}},
		{in: "*2\r\n$3\r\n1-0\r\n-WRONGTYPE no\r\n", want: reply{items: []reply{{}, {err: refusal("WRONGTYPE no")}}}},
		{in: "-ERR unknown command 'XADD', with args beginning with: 'orders' '*' 'secret' \r\n", want: reply{err: refusal("ERR unknown command 'XADD'")}},
		{in: strings.Repeat("*1\r\n", 1<<20), bad: true},
		{in: "HTTP/1.1 400\r\n", bad: true},
		{in: "$99999999999\r\n", bad: true},
		{in: "*99999999999\r\n", bad: true},
		{in: "$x\r\n", bad: true},
		{in: ":\n", bad: true},
		{in: "\r\n", bad: true},
		{in: "$5\r\nab", bad: true},
	} {
		r := bufio.NewReaderSize(strings.NewReader(tt.in+"+next\r\n"), 128)
		if tt.in == "$5\r\nab" {
			r.Reset(strings.NewReader(tt.in))
		}
		got, err := readReply(r)
		if (err != nil) != tt.bad {
			t.Errorf("%.20q: %v", tt.in, err)
			continue
		}
		if tt.bad {
			continue
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%.20q: %+v, want %+v", tt.in, got, tt.want)
		}
		if rest, _ := r.ReadString('\n'); rest != "+next\r\n" {
			t.Errorf("%.20q: %q is left", tt.in, rest)
		}
	}
}

// TestArguments: an argument is written unchanged at any position in the buffer.
func TestArguments(t *testing.T) {
	var want, got bytes.Buffer
	s := script{bufio.NewWriterSize(&got, 64)}
	for n := range 200 {
		text := strings.Repeat("\r", n)
		fmt.Fprintf(&want, "*2\r\n$%d\r\n%s\r\n$1\r\n\x00\r\n", n, text)
		s.begin(2)
		if n%2 == 0 {
			arg(s, text)
		} else {
			arg(s, []byte(text))
		}
		arg(s, "\x00")
	}
	if err := s.w.Flush(); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes, want %d: %v", got.Len(), want.Len(), err)
	}
}

// TestKeylessPartitions: messages without a key are spread over a topic's streams,
// and the same one goes to the same stream each time.
func TestKeylessPartitions(t *testing.T) {
	s, err := Open("redis://h?partitions=4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	count := make(map[string]int)
	for i := range 400 {
		m := &postrider.Message{ID: fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", i), Topic: "t", Payload: []byte("x")}
		p, err := s.Preview("", m)
		again, _ := s.Preview("", m)
		if err != nil || p.Destination != again.Destination {
			t.Fatalf("%s, then %s: %v", p.Destination, again.Destination, err)
		}
		count[p.Destination]++
	}
	for _, stream := range Streams("t", 4) {
		if count[stream] < 50 {
			t.Errorf("%d of 400 messages are in %s", count[stream], stream)
		}
	}
}
