package httpbroker_test

import (
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/httpbroker"
)

// A message that is all that an endpoint refuses, for minutes and while it tries no
// other, is the message's failure at last: else its key would be an outage for ever.
// Whatever speaks for the endpoint's fault makes it one.
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
		judge, got := httpbroker.Judge(), accepted
		for _, a := range c.answers {
			got = accepted
			if err := judge(a.id, a.status, a.at); err != nil {
				got = broker.Classify(err).Class
			}
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
