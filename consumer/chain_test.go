package consumer

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/seal"
)

type (
	orderV1 struct{ Units int }
	orderV2 struct{ Cents int }
)

func toCents(e orderV1) (orderV2, error) {
	switch e.Units {
	case 13:
		return orderV2{}, errors.New("the secret 13")
	case 14:
		panic("the secret 14")
	case 15:
		return orderV2{}, schema.ErrDrop
	}
	return orderV2{Cents: 100 * e.Units}, nil
}

// chained runs a consumer with a chain over msgs for an hour.
func chained(t *testing.T, chain schema.Chain[orderV2], opts *Options, msgs ...postrider.Message) (handled []int, log string, s Stats) {
	t.Helper()
	return ran(t, opts, msgs, func(c *Consumer[*sql.Tx]) {
		HandleChain(c, "placed", chain, func(_ context.Context, _ *sql.Tx, e orderV2) error {
			handled = append(handled, e.Cents)
			return nil
		}, "created")
	}, &handled)
}

// ran runs a consumer over msgs for an hour.
func ran(t *testing.T, opts *Options, msgs []postrider.Message, register func(c *Consumer[*sql.Tx]), got *[]int) (handled []int, log string, s Stats) {
	t.Helper()
	var out bytes.Buffer
	src := &again{ready: make(chan broker.Delivery, len(msgs))}
	for i, m := range msgs {
		m.ID, m.Topic = fmt.Sprintf("id-%d", i), "t"
		src.ready <- broker.Delivery{Attempt: 1, Message: m}
	}
	opts.Name, opts.Logger, opts.Concurrency = "c", slog.New(slog.NewTextHandler(&out, nil)), 1
	c := New(src, DB[*sql.Tx](&flaky{}), opts)
	register(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	time.Sleep(time.Hour) // in the bubble
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return *got, out.String(), c.Stats()
}

func placed(version int32, payload string) postrider.Message {
	return postrider.Message{Type: "placed", SchemaVersion: version, Payload: []byte(payload)}
}

func TestHandleChain(t *testing.T) {
	chain := schema.Then(schema.Begin[orderV1](), toCents)
	sealed := placed(1, "x")
	sealed.Headers = map[string]string{seal.HeaderAlgorithm: seal.Algorithm}
	renamed := placed(1, `{"Units":4}`)
	renamed.Type = "created"
	for name, tc := range map[string]struct {
		m       postrider.Message
		chain   schema.Chain[orderV2]
		handled []int
		dead    int64
		retried bool // for ever: the fake database does not count attempts
		log     string
	}{
		"the newest":        {placed(2, `{"Cents":5}`), chain, []int{5}, 0, false, ""},
		"an old one":        {placed(1, `{"Units":3}`), chain, []int{300}, 0, false, ""},
		"unversioned":       {placed(0, `{"Units":3}`), chain, []int{300}, 0, false, ""},
		"an alias":          {renamed, chain, []int{400}, 0, false, ""},
		"newer":             {placed(3, `{"Cents":5}`), chain, nil, 0, true, "SCHEMA_NEWER: message has schema version 3, this program decodes 1 to 2"},
		"newer, dead":       {placed(3, `{"Cents":5}`), schema.Then(schema.BeginWith[orderV1](schema.Options{Newer: schema.Dead}), toCents), nil, 1, false, "SCHEMA_NEWER"},
		"older":             {placed(1, `{"Cents":5}`), schema.BeginWith[orderV2](schema.Options{First: 2}), nil, 1, false, "SCHEMA_OLDER"},
		"not of its type":   {placed(2, `{"Cents":"secret"}`), chain, nil, 1, false, `SCHEMA_DECODE: decode the payload of schema version 2 as consumer.orderV2: field \"Cents\"`},
		"refused":           {placed(1, `{"Units":13}`), chain, nil, 1, false, "SCHEMA_UPCAST: upcast from schema version 1 to 2: a *errors.errorString"},
		"upcaster panicked": {placed(1, `{"Units":14}`), chain, nil, 1, false, "SCHEMA_UPCAST: upcast from schema version 1 to 2: panicked with a string"},
		"dropped":           {placed(1, `{"Units":15}`), chain, nil, 0, false, ""},
		"sealed":            {sealed, chain, nil, 0, true, "set Options.Opener"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				handled, log, s := chained(t, tc.chain, &Options{MaxAttempts: 3}, tc.m)
				if !slices.Equal(handled, tc.handled) || s.Dead != tc.dead || tc.retried != (s.Retries > 0) {
					t.Errorf("handled %v, %d dead after %d retries, want %v, %d and %v", handled, s.Dead, s.Retries, tc.handled, tc.dead, tc.retried)
				}
				if !strings.Contains(log, tc.log) || strings.Contains(log, "secret") {
					t.Errorf("log %.500s, want %s", log, tc.log)
				}
			})
		})
	}
}

// TestHandleRefusesNewerVersions: a handler of one type has version 1, and a version
// above it is never decoded as that type.
func TestHandleRefusesNewerVersions(t *testing.T) {
	for version, want := range map[int32]string{0: "[5]", 1: "[5]", 2: "[]"} {
		synctest.Test(t, func(t *testing.T) {
			var cents []int
			_, log, s := ran(t, &Options{MaxAttempts: 3}, []postrider.Message{placed(version, `{"Cents":5}`)}, func(c *Consumer[*sql.Tx]) {
				Handle(c, "placed", func(_ context.Context, _ *sql.Tx, e orderV2) error {
					cents = append(cents, e.Cents)
					return nil
				})
			}, &cents)
			refused := strings.Contains(log, "SCHEMA_NEWER: message has schema version 2, this program decodes 1 only; deploy a program that decodes it")
			if fmt.Sprint(cents) != want || refused != (version == 2) || s.Dead != 0 {
				t.Errorf("version %d: handled %v, want %s; %d dead; log %.400s", version, cents, want, s.Dead, log)
			}
		})
	}
}

// TestTheBrakeHoldsNewerVersions: an outdated program makes no more dead
// letters than the brake allows.
//
// Promises: S
func TestTheBrakeHoldsNewerVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		msgs := make([]postrider.Message, 40)
		for i := range msgs {
			msgs[i] = placed(3, `{"Cents":5}`)
		}
		chain := schema.Then(schema.BeginWith[orderV1](schema.Options{Newer: schema.Dead}), toCents)
		handled, log, s := chained(t, chain, &Options{Brake: 5}, msgs...)
		if len(handled) != 0 || s.Dead != 5 || !slices.Equal(s.Down, []string{"handlers"}) {
			t.Errorf("%d handled, %d dead, down %v, want 0, 5 and handlers", len(handled), s.Dead, s.Down)
		}
		if !strings.Contains(log, "SCHEMA_NEWER") {
			t.Error(log)
		}
	})
}

func TestAChainThatCannotBeUsedEndsRun(t *testing.T) {
	c := New(&again{}, DB[*sql.Tx](&flaky{}), &Options{Name: "c"})
	HandleChain(c, "placed", schema.Chain[orderV1]{}, func(context.Context, *sql.Tx, orderV1) error { return nil })
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), `consumer "c": chain of the type "placed": schema: the chain is empty`) {
		t.Error(err)
	}
}
