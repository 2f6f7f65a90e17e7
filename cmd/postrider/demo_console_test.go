package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/demo"
)

// TestDemoConsole: in the console of the demo a person watches orders flow, kills the relay,
// finds the dead letter of an order that the broker rejects, and repairs it; nothing is lost,
// doubled or reordered meanwhile.
//
// Promises: L, O, E
func TestDemoConsole(t *testing.T) {
	p := launch(t, "demo", "--console", "--rate", "20", "--output", "json")
	b := browse(t, p)
	if page := b.page(""); !strings.Contains(page, "Kill the relay") || !strings.Contains(page, "Raise the broker") {
		t.Fatalf("the overview is\n%s", page)
	}
	dead := func() bool { return strings.Contains(b.page("dead"), "do/retry?") }
	until(t, "an order is rejected", p, dead)
	if keys := b.page("keys"); !strings.Contains(keys, "order-") {
		t.Errorf("the blocked keys are\n%s", keys)
	}
	b.press(0)
	until(t, "another relay sends", p, func() bool { return p.said.count("taken over after") == 1 })
	b.press(2)
	if form, _ := b.do("do/retry?topic=orders", "reason", "the limit is raised"); !strings.Contains(form, "Retry 1 dead letter") {
		t.Errorf("the form is\n%s", form)
	}
	until(t, "the order is sent", p, func() bool { return !dead() && strings.Contains(b.page("keys"), "0</span></h1>") })
	b.press(0)
	p.stop()
	var got demo.Answer
	if err := json.Unmarshal([]byte(p.out.String()), &got); err != nil {
		t.Fatalf("%v: %s", err, p.out)
	}
	want := got
	want.Effects, want.Kills = got.Messages, 2
	want.Lost, want.Phantom, want.OutOfOrder, want.DoubleEffects, want.Left = 0, 0, 0, 0, 0
	if got != want || got.Orders < 10 {
		t.Errorf("counted %+v\n%s", got, p.said)
	}
}

// TestDemoConsoleLeavesDeadLetters: what nobody repaired is counted as left, not as lost.
func TestDemoConsoleLeavesDeadLetters(t *testing.T) {
	p := launch(t, "demo", "--console", "--output", "json")
	b := browse(t, p)
	until(t, "an order is rejected", p, func() bool { return strings.Contains(b.page("dead"), "do/retry?") })
	p.stop()
	var got demo.Answer
	if err := json.Unmarshal([]byte(p.out.String()), &got); err != nil {
		t.Fatalf("%v: %s", err, p.out)
	}
	if got.Left < 1 || got.Left > 3 || got.Lost != 0 || got.Effects+got.Left != got.Messages {
		t.Errorf("counted %+v", got)
	}
}

// TestDemoConsoleJudgesNoActs: what a person discards is not called lost.
func TestDemoConsoleJudgesNoActs(t *testing.T) {
	p := launch(t, "demo", "--console")
	until(t, "the console is there", p, func() bool { return strings.Contains(p.out.String(), "console: ") })
	p.said = p.out // where a person reads it
	b := browse(t, p)
	until(t, "an order is rejected", p, func() bool { return strings.Contains(b.page("dead"), "do/retry?") })
	b.do("do/discard?topic=orders", "reason", "nobody wants it", "confirm", "1")
	p.stop()
	if !strings.Contains(p.out.String(), "You acted 1 time:") {
		t.Errorf("the end is\n%s", p.out)
	}
}

func TestDemoConsoleRefuses(t *testing.T) {
	for _, flag := range []string{"--orders=5", "--kill=1"} {
		if got := cli(t, nil, "", "demo", "--console", flag); got.code != 2 || !strings.Contains(got.err, "has no effect with --console") {
			t.Errorf("%s: exit code %d, %s", flag, got.code, got.err)
		}
	}
}
