package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
)

// partitions is the number of a topic's partitions on Kafka, and of its streams on Redis
// for consumers.
const partitions = 8

// source is a broker with the topic of a run, accessed by its vendor's client. Its
// acknowledged messages survive a kill of its process.
type source struct{ *brokers.Broker }

// Brokers that have no consumers. webhook has no vendor's client either.
const (
	sns     = "sns"
	webhook = "webhook"
)

func brokerNames() []string {
	names := append(private.Names(), sns, webhook)
	slices.Sort(names)
	return names
}

// openBroker starts a broker that flushes messages before it acknowledges them.
func openBroker(ctx context.Context, name string) (*source, error) {
	var (
		b   *brokers.Broker
		err error
	)
	switch name {
	case sns:
		b, err = private.LaunchSNS(ctx)
	case webhook:
		b, err = openWebhook()
	default:
		b, err = private.Launch(ctx, name, testserver.Throughput(), testserver.Durable())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := b.Make(ctx, brokers.Topic{Name: topic, Partitions: partitions}); err != nil {
		b.Close()
		return nil, err
	}
	return &source{b}, nil
}

// counted counts once, within a timeout that suffices for a running broker.
func (s *source) counted(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.Count(ctx, topic)
}

// moved waits until the broker has more than n records, and returns their number.
func (s *source) moved(ctx context.Context, n int) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("no message arrived within two minutes"))
	defer cancel()
	for {
		now, err := s.counted(ctx)
		if err == nil && now > n {
			return now, nil
		}
		if pause(ctx, 10*time.Millisecond) != nil {
			return 0, context.Cause(ctx)
		}
	}
}

// shown is how many findings a run describes.
const shown = 100

// patience is the least silence after which a missing record counts as lost.
const patience = 30 * time.Second

// settled waits until the broker has total records and no more have arrived for a while,
// and judges its log. A missing record counts as lost only after a silence without a
// failed request that is longer than such a request can hide records.
func (s *source) settled(ctx context.Context, truth map[string]int, total int) (Result, error) {
	last, since, enough := -1, time.Now(), max(patience, 3*s.Lease)
	for {
		now, err := s.counted(ctx)
		switch {
		case err != nil: // an unreachable broker is not quiet
			since = time.Now()
		case now != last:
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); last >= total && quiet > 2*time.Second || quiet > enough {
			check := newChecker()
			if err := s.Read(ctx, topic, func(r brokers.Record) { check.add(r) }); err != nil {
				return Result{}, fmt.Errorf("read the broker's log: %w", err)
			}
			if r := check.judge(truth); r.Lost == 0 || quiet > enough {
				for _, finding := range check.findings(shown) {
					say("out of order: %s", finding)
				}
				return r, nil
			}
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return Result{}, err
		}
	}
}
