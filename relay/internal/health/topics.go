package health

import (
	"strings"
	"time"
)

// works is how long an acknowledgement proves that a topic works.
const works = 30 * time.Second

// Topics has the two topics with the latest acknowledgements. The zero value
// has none.
type Topics [2]struct {
	name string
	at   time.Duration
}

// Acked records an acknowledgement. It costs two comparisons.
func (t *Topics) Acked(now time.Duration, topic string) {
	if t[0].name != topic {
		t[1], t[0].name = t[0], strings.Clone(topic)
	}
	t[0].at = now
}

// Work reports whether a topic for which meant returns true had an acknowledgement lately.
func (t *Topics) Work(now time.Duration, meant func(topic string) bool) bool {
	for _, a := range t {
		if a.name != "" && now-a.at <= works && meant(a.name) {
			return true
		}
	}
	return false
}

// Places are those where messages of unknown fate go, each with the start of the latest call
// that brought an acknowledgement there.
type Places map[string]time.Duration

// Watch makes acknowledgements at a place count from now on.
func (p Places) Watch(place string) {
	if _, ok := p[place]; !ok {
		p[strings.Clone(place)] = 0
	}
}

// Proved notes an acknowledgement of a call that began at that time, where one is waited for.
func (p Places) Proved(place string, began time.Duration) {
	if at, ok := p[place]; ok && at < began {
		p[strings.Clone(place)] = began
	}
}
