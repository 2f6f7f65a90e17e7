package rabbitbroker

import (
	"errors"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
)

// refusals has the routing keys and the exchange that the user may not write to. One
// message to them ends the channel with all messages in flight, so they are
// paused, for growing times, while others are sent.
type refusals struct {
	some atomic.Bool // there is an entry

	mu sync.Mutex
	at map[string]*refusal // by routing key; "" means the exchange itself
}

type refusal struct {
	err   error
	tries int
	until time.Time
}

// RabbitMQ's texts for missing permissions: see rabbit_access_control and, for a topic
// permission, rabbit_channel:check_topic_authorisation.
var (
	refusedTopic    = regexp.MustCompile(`access to topic '(.*)' in exchange '.*' in vhost '.*' refused for user`)
	refusedExchange = regexp.MustCompile(`access to exchange '.*' in vhost '.*' refused for user`)
)

// learn records a missing permission if it was the reason for a session's end.
func (r *refusals) learn(why error, now time.Time) {
	var e *amqp.Error
	if !errors.As(why, &e) || e.Code != amqp.AccessRefused {
		return
	}
	key := ""
	if m := refusedTopic.FindStringSubmatch(e.Reason); m != nil {
		key = m[1]
	} else if !refusedExchange.MatchString(e.Reason) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at == nil {
		r.at = make(map[string]*refusal)
	}
	f := r.at[key]
	if f == nil {
		f = new(refusal)
		r.at[key] = f
	}
	f.err, f.until = e, now.Add(min(time.Second<<min(f.tries, 5), refusedMost))
	f.tries++
	r.some.Store(true)
}

// refusedMost is the longest pause before a permission is tried again.
const refusedMost = 20 * time.Second

// of returns the outage of a routing key that was refused lately, or nil.
func (r *refusals) of(key, exchange string, now time.Time) error {
	if !r.some.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range []string{"", key} {
		f := r.at[k]
		if f == nil || !now.Before(f.until) {
			continue
		}
		if k != "" && exchange != "" {
			exchange += "/" + k
		}
		return broker.Outage(f.err, codeAccess, exchange)
	}
	return nil
}

// taken forgets a refusal after a message was accepted.
func (r *refusals) taken(key string) {
	if !r.some.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.at, key)
	delete(r.at, "")
	r.some.Store(len(r.at) > 0)
}
