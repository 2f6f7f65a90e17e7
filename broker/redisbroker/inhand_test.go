package redisbroker

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestAcknowledgedWhileClaiming: an entry that is acknowledged between a claim and the
// handling of its answer is not received again. After the group was created again it is.
//
// Promises: O
func TestAcknowledgedWhileClaiming(t *testing.T) {
	s, err := NewSource(&redis.Options{Addr: "127.0.0.1:1"}, &SourceOptions{Group: "g", Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	st := s.streams[0]
	add := func(id string) bool {
		before := st.log.Len()
		s.add(st, []any{id, []any{"payload", "x"}}, 1)
		return st.log.Len() > before
	}
	st.claim = "0-0"
	st.acks["1-0"] = true
	if add("1-0") {
		t.Error("what is acknowledged here is received again")
	}
	st.confirmed("1-0")
	if add("1-0") {
		t.Error("what the server has heard is received again")
	}
	if !add("2-0") {
		t.Error("what is not acknowledged is not received")
	}
	st.drop()
	if !add("1-0") {
		t.Error("what comes again later is not received")
	}
}

// TestHostsTurnOnce: connections that find out together that their host is not the
// primary do not skip the next one.
func TestHostsTurnOnce(t *testing.T) {
	h := new(hosts)
	links := [4]link{}
	for i := range links {
		links[i].hosts, links[i].was = h, h.now()
	}
	for i := range links {
		links[i].leave()
	}
	if n := h.now(); n != 1 {
		t.Errorf("four connections to one host took %d turns", n)
	}
}
