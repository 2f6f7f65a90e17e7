package httpbroker_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/httpbroker"
)

// TestRefusedAlone: when an endpoint refuses a single message for minutes, and no other
// is tried, the failure becomes the message's own: otherwise its key would be an outage
// for ever. Any evidence against the endpoint makes it an outage.
func TestRefusedAlone(t *testing.T) {
	type answer struct {
		id     string
		status int
		at     time.Duration
	}
	const accepted = broker.Class(99)
	for name, c := range map[string]struct {
		answers []answer
		want    broker.Class // of the last one
	}{
		"at once":               {[]answer{{"a", 400, 0}}, broker.ClassOutage},
		"for a while":           {[]answer{{"a", 400, 0}, {"a", 400, 4 * time.Minute}}, broker.ClassOutage},
		"for long":              {[]answer{{"a", 400, 0}, {"a", 400, time.Minute}, {"a", 400, 5 * time.Minute}}, broker.ClassFailed},
		"and again":             {[]answer{{"a", 400, 0}, {"a", 400, 5 * time.Minute}, {"a", 400, 6 * time.Minute}}, broker.ClassFailed},
		"others too":            {[]answer{{"a", 400, 0}, {"b", 400, time.Minute}, {"a", 400, 9 * time.Minute}}, broker.ClassOutage},
		"a wrong secret":        {[]answer{{"a", 401, 0}, {"a", 401, 9 * time.Minute}}, broker.ClassOutage},
		"a broken server":       {[]answer{{"a", 500, 0}, {"a", 500, 9 * time.Minute}}, broker.ClassOutage},
		"broken in between":     {[]answer{{"a", 400, 0}, {"a", 500, 4 * time.Minute}, {"a", 400, 6 * time.Minute}}, broker.ClassOutage},
		"accepted in between":   {[]answer{{"a", 400, 0}, {"a", 200, time.Minute}, {"b", 400, 6 * time.Minute}}, broker.ClassOutage},
		"another was accepted":  {[]answer{{"a", 400, 0}, {"b", 200, time.Second}, {"a", 400, 2 * time.Second}}, broker.ClassFailed},
		"accepted in the end":   {[]answer{{"a", 400, 0}, {"a", 200, 9 * time.Minute}}, accepted},
		"it speaks of the body": {[]answer{{"a", 422, 0}}, broker.ClassRejected},
	} {
		health, got := httpbroker.NewHealth(), accepted
		for _, a := range c.answers {
			got = accepted
			if err := health.Answer(a.id, a.status, "", a.at, a.at); err != nil {
				got = broker.Classify(err).Class
			}
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestWhatHadBegunProvesNothing: an endpoint that refuses all requests from some moment on
// still accepts earlier ones, and its answers arrive in any order: its outage does not
// become the fault of a message.
func TestWhatHadBegunProvesNothing(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	type answer struct {
		id          string
		status      int
		began, ends time.Duration
	}
	for name, c := range map[string]struct {
		answers []answer
		want    broker.Class // of the last one
	}{
		"another had begun before the first refusal": {[]answer{{"a", 401, 0, ms(10)}, {"b", 200, ms(5), ms(15)}, {"a", 401, ms(20), ms(30)}}, broker.ClassOutage},
		"it had begun before another was accepted":   {[]answer{{"a", 401, 0, ms(10)}, {"b", 200, ms(20), ms(40)}, {"a", 401, ms(30), ms(50)}}, broker.ClassOutage},
		"what is no matter of credentials":           {[]answer{{"a", 500, 0, ms(10)}, {"b", 200, ms(5), ms(15)}, {"a", 500, ms(20), ms(30)}}, broker.ClassFailed},
		"another in between":                         {[]answer{{"a", 401, 0, ms(10)}, {"b", 200, ms(20), ms(40)}, {"a", 401, ms(50), ms(60)}}, broker.ClassFailed},
	} {
		health, got := httpbroker.NewHealth(), broker.Class(99)
		for _, a := range c.answers {
			got = 99
			if err := health.Answer(a.id, a.status, "", a.began, a.ends); err != nil {
				got = broker.Classify(err).Class
			}
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAskedPauseIsKept: a pause that an endpoint asks for is kept, whatever it answers to
// requests in flight: an endpoint with a rate limit accepts some and refuses
// some at once. The breaker's own pause ends with the first accepted request.
func TestAskedPauseIsKept(t *testing.T) {
	const asked = 60 * time.Second
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	type answer struct {
		status      int
		retryAfter  string
		began, ends time.Duration
	}
	limited := answer{429, "60", 0, ms(10)}
	outage := make([]answer, 5) // as many as open the breaker
	for i := range outage {
		outage[i] = answer{502, "", 0, ms(5)}
	}
	for name, c := range map[string]struct {
		answers []answer
		class   broker.Class // of what comes then, 99: it is sent
	}{
		"alone":                  {[]answer{limited}, broker.ClassThrottled},
		"one was accepted":       {[]answer{limited, {200, "", 0, ms(11)}}, broker.ClassThrottled},
		"one failed":             {[]answer{limited, {500, "", 0, ms(11)}}, broker.ClassThrottled},
		"one asks for less":      {[]answer{limited, {429, "1", 0, ms(11)}}, broker.ClassThrottled},
		"one asks for nothing":   {[]answer{limited, {429, "", 0, ms(11)}}, broker.ClassThrottled},
		"while it was down":      {append(outage[:5:5], limited), broker.ClassThrottled},
		"a request of meanwhile": {append(outage[:5:5], limited, answer{502, "", ms(7), ms(11)}), broker.ClassThrottled},
		"down":                   {outage, broker.ClassOutage},
		"down, one was accepted": {append(outage[:5:5], answer{200, "", 0, ms(11)}), 99},
	} {
		health, at := httpbroker.NewHealth(), asked/2
		for _, a := range c.answers {
			_ = health.Answer("m", a.status, a.retryAfter, a.began, a.ends)
		}
		if c.class != broker.ClassThrottled {
			at = ms(12)
		}
		got := broker.Class(99)
		if err := health.Closed(at); err != nil {
			got = broker.Classify(err).Class
		}
		if got != c.class {
			t.Errorf("%s: %v, want %v", name, got, c.class)
		}
		if err := health.Closed(asked + ms(11)); err != nil {
			t.Errorf("%s: after the pause: %v", name, err)
		}
	}
}

// TestSilence: an endpoint is silent after four times its usual time, and not
// while it answers other requests.
func TestSilence(t *testing.T) {
	const ms = time.Millisecond
	type answer struct{ began, ends time.Duration }
	for name, c := range map[string]struct {
		answers []answer
		began   time.Duration
		at      time.Duration
		want    bool
	}{
		"new, at once":           {nil, 0, 299 * ms, false},
		"new, for long":          {nil, 0, 300 * ms, true},
		"quick, for a while":     {[]answer{{0, 20 * ms}}, 100 * ms, 399 * ms, false},
		"quick, for long":        {[]answer{{0, 20 * ms}}, 100 * ms, 400 * ms, true},
		"quick, answers others":  {[]answer{{0, 20 * ms}, {200 * ms, 220 * ms}}, 100 * ms, 900 * ms, false},
		"slow, for long":         {[]answer{{0, 200 * ms}}, 300 * ms, 1099 * ms, false},
		"slow, for very long":    {[]answer{{0, 200 * ms}}, 300 * ms, 1100 * ms, true},
		"slow, and then quicker": {[]answer{{0, 200 * ms}, {200 * ms, 201 * ms}}, 300 * ms, 1020 * ms, true},
	} {
		health := httpbroker.NewHealth()
		for _, a := range c.answers {
			if err := health.Answer("a", 200, "", a.began, a.ends); err != nil {
				t.Fatal(err)
			}
		}
		if got := health.Silent(c.began, c.at); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
