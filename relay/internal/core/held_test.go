package core

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

// chunk is what a store reads many messages into: their strings are parts of it, and
// each of them keeps all of it alive.
type chunk [1 << 16]byte

// texts cuts strings out of one chunk.
func texts(all ...string) (*chunk, []string) {
	c := new(chunk)
	var cut []string
	at := 0
	for _, s := range all {
		copy(c[at:], s)
		cut = append(cut, unsafe.String(&c[at], len(s)))
		at += len(s)
	}
	return c, cut
}

// The engine keeps what it learned of destinations for long, and of a read that is
// settled or parked not a byte.
//
// Promises: G
func TestNothingOfASettledReadIsKept(t *testing.T) {
	for name, verdict := range map[string]func(m *postrider.Message, together int) error{
		"acknowledged": func(*postrider.Message, int) error { return nil },
		"rejected":     func(m *postrider.Message, _ int) error { return broker.Rejected(errTest, "r1", m.Topic) },
		"out":          func(m *postrider.Message, _ int) error { return broker.Outage(errTest, "o1", m.Topic) },
		"out under another name": func(m *postrider.Message, _ int) error {
			return broker.Outage(errTest, "o1", m.Topic[:3])
		},
		"unknown": func(*postrider.Message, int) error { return unknown },
		"failed":  func(*postrider.Message, int) error { return failed },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, port.Config{Policy: func(string) port.Policy { return port.Skip }}, 2, func(m *postrider.Message, together int) error {
				if m.Topic == "works" {
					return nil
				}
				return verdict(m, together)
			})
			var refs []weak.Pointer[chunk]
			for i, key := range []string{"a", "b", ""} {
				c, cut := texts("troubled", "topic", "payload", key)
				b := s.batch(0, "", "", "")
				b.Position = store.Position([]byte{byte(i + 1)})
				b.Messages[0].Topic, b.Messages[0].Type, b.Messages[0].Key = cut[0], cut[2], cut[3]
				b.Messages[1].Topic = "works"
				b.Messages[0].Version = 7
				s.waiting[0] = append(s.waiting[0], staged{at: s.began + time.Duration(i)*time.Second, b: b})
				refs = append(refs, weak.Make(c))
			}
			for i := range 60 { // so that the others are known to work
				s.comes(time.Duration(i)*time.Second, 1, "other@works")
			}
			s.until(time.Minute, func() bool { return false })
			for _, l := range s.e.held {
				if len(l.queue) > 0 {
					t.Fatalf("lane %d holds %d batches after a minute", l.id, len(l.queue))
				}
			}
			s.waiting, s.parked, s.facts, s.acts = nil, nil, nil, nil
			s.step(port.Tick{})
			s.facts, s.acts = nil, nil
			runtime.GC()
			for i, ref := range refs {
				if ref.Value() != nil {
					t.Errorf("the engine keeps read %d alive", i)
				}
			}
			runtime.KeepAlive(s.e)
		})
	}
}

// However many destinations reject, each is held after its rejections in a row, and those
// of one do not release another.
// Promises: S
func TestManyDestinationsThatRejectAreHeld(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(1)
	const many, each = 1500, 100
	dead := 0
	for range each {
		for i := range many {
			name := fmt.Sprint("t", i)
			s, held := r.e.rejected(name, broker.Classify(rejected))
			if !held {
				dead++
			} else if s.name != name || !s.braked {
				t.Fatalf("%s waits for %+v", name, s)
			}
		}
	}
	if most := many * 20; dead > most {
		t.Errorf("%d of %d messages died, the brakes allow %d", dead, many*each, most)
	}
}
