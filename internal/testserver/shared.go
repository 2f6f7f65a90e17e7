package testserver

import (
	"context"
	"sync"
)

// shared holds servers that live as long as the test binary. They need no cleanup:
// the kernel ends them with the binary, and the next process that starts a server
// removes their directories.
type shared[T any] struct {
	mu      sync.Mutex
	started map[string]func() (T, error)
}

// get starts the server named key once. A failure is kept too: every test of the
// binary reports it without a retry.
func (s *shared[T]) get(key string, start func() (T, error)) (T, error) {
	s.mu.Lock()
	if s.started == nil {
		s.started = make(map[string]func() (T, error))
	}
	once, ok := s.started[key]
	if !ok {
		once = sync.OnceValues(start)
		s.started[key] = once
	}
	s.mu.Unlock()
	return once()
}

var (
	sharedPostgres shared[*Postgres]
	sharedKafka    shared[*Kafka]
	sharedNATS     shared[*NATS]
	sharedRabbitMQ shared[*RabbitMQ]
	sharedRedis    shared[*Redis]
	sharedMySQL    shared[*MySQL]
	sharedElastic  shared[*ElasticMQ]
	sharedPubSub   shared[*PubSub]
	sharedMoto     shared[*Moto]
	sharedFauxqs   shared[*Fauxqs]
)

// SharedPostgres returns the one server of this version that all tests of this
// binary use. Take a Database from it; do not kill, freeze or stop it.
func SharedPostgres(tb TB, version string) *Postgres {
	tb.Helper()
	p, err := sharedPostgres.get(version, func() (*Postgres, error) {
		return LaunchPostgres(context.Background(), version, "")
	})
	return given(tb, p, err)
}

// SharedKafka returns the one broker that all tests of this binary use. Give
// topics and groups names of their own; do not kill, freeze or stop it.
func SharedKafka(tb TB) *Kafka {
	tb.Helper()
	k, err := sharedKafka.get("", func() (*Kafka, error) {
		return LaunchKafka(context.Background(), "")
	})
	return given(tb, k, err)
}

// SharedNATS returns the one server that all tests of this binary use. Give
// streams names of their own; do not kill, freeze or stop it.
func SharedNATS(tb TB) *NATS {
	tb.Helper()
	n, err := sharedNATS.get("", func() (*NATS, error) {
		return LaunchNATS(context.Background(), "")
	})
	return given(tb, n, err)
}

// SharedElasticMQ returns the one server that all tests of this binary use. Give
// queues names of their own; do not kill, freeze or stop it.
func SharedElasticMQ(tb TB) *ElasticMQ {
	tb.Helper()
	e, err := sharedElastic.get("", func() (*ElasticMQ, error) {
		return LaunchElasticMQ(context.Background(), "", Throughput())
	})
	return given(tb, e, err)
}

// SharedMoto returns the one server that all tests of this binary use. Give queues and
// topics names of their own; do not kill, freeze or stop it.
func SharedMoto(tb TB) *Moto {
	tb.Helper()
	m, err := sharedMoto.get("", func() (*Moto, error) {
		return LaunchMoto(context.Background(), "")
	})
	return given(tb, m, err)
}

// SharedFauxqs returns the one server that all tests of this binary use. Give queues and
// topics names of their own; do not kill, freeze or stop it.
func SharedFauxqs(tb TB) *Fauxqs {
	tb.Helper()
	f, err := sharedFauxqs.get("", func() (*Fauxqs, error) {
		return LaunchFauxqs(context.Background(), "")
	})
	return given(tb, f, err)
}

// SharedPubSub returns the one emulator that all tests of this binary use. Give topics
// and subscriptions names of their own; do not kill, freeze or stop it.
func SharedPubSub(tb TB) *PubSub {
	tb.Helper()
	p, err := sharedPubSub.get("", func() (*PubSub, error) {
		return LaunchPubSub(context.Background(), "")
	})
	return given(tb, p, err)
}

// SharedRedis returns the one server of this version that all tests of this
// binary use. Give streams names of their own; do not kill, freeze, flush or stop it.
func SharedRedis(tb TB, version string) *Redis {
	tb.Helper()
	r, err := sharedRedis.get(version, func() (*Redis, error) {
		return LaunchRedis(context.Background(), version, "")
	})
	return given(tb, r, err)
}
