package inhand_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
)

func take(l *inhand.Log, now time.Time) (string, []inhand.Token) {
	ds, _ := l.Take(nil, 100, now)
	var ids []string
	var tokens []inhand.Token
	for _, d := range ds {
		ids = append(ids, d.Message.ID)
		tokens = append(tokens, d.Token.(inhand.Token))
	}
	return strings.Join(ids, " "), tokens
}

func TestGivenBackComesBeforeLaterOnesOfItsKey(t *testing.T) {
	var l inhand.Log
	now := time.Now()
	add := func(id, key string, pos int64) {
		l.Add(broker.Delivery{Message: postrider.Message{ID: id, Key: key}, Attempt: 1}, pos)
	}
	add("a1", "a", 1)
	add("b1", "b", 2)
	got, tokens := take(&l, now)
	if got != "a1 b1" {
		t.Fatal(got)
	}
	tokens[0].GiveBack(now.Add(time.Second))
	tokens[1].Ack()
	add("a2", "a", 3)
	add("b2", "b", 4)
	if got, _ := take(&l, now); got != "b2" {
		t.Fatalf("before the delay has passed: %s", got)
	}
	if _, ok := l.Trim(); ok {
		t.Fatal("something behind an unacknowledged message may be committed")
	}
	if _, ok := tokens[0].Live(); ok {
		t.Fatal("a delivery that was given back can still be settled")
	}
	got, tokens = take(&l, now.Add(2*time.Second))
	if got != "a1 a2" {
		t.Fatalf("after the delay: %s", got)
	}
	tokens[0].Ack()
	if next, ok := l.Trim(); !ok || next != 3 {
		t.Fatalf("committed up to %d, %v", next, ok)
	}
	l.Drop()
	if _, ok := tokens[1].Live(); ok {
		t.Fatal("a dropped log's delivery can be settled")
	}
}
