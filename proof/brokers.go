package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// source is a real broker, seen through its own client. An acknowledged message
// of it outlives a kill of its process.
type source struct {
	name     string
	relayURL string // what the relay is given

	// count is how many records the broker holds; an error while it is down.
	count func(ctx context.Context) (int, error)
	// read gives each record that the broker holds now to each, those of one
	// key in the broker's order.
	read func(ctx context.Context, each func(payload []byte)) error
	server
	close func()
}

// server is what can be done to a broker's process.
type server interface {
	Kill() error
	Restart() error
	Freeze() error
	Thaw() error
}

// brokers are the kinds that a run can have.
func brokers() map[string]func(ctx context.Context) (*source, error) {
	return map[string]func(ctx context.Context) (*source, error){
		"kafka":    openKafka,
		"nats":     openNATS,
		"rabbitmq": openRabbitMQ,
		"redis":    openRedis,
		"webhook":  openWebhook,
	}
}

func brokerNames() []string {
	var names []string
	for name := range brokers() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func openBroker(ctx context.Context, name string) (*source, error) {
	open := brokers()[name]
	if open == nil {
		return nil, fmt.Errorf("unknown broker %q, want one of %q", name, brokerNames())
	}
	s, err := open(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.name = name
	return s, nil
}

// counted asks once, within a time that a broker that is up keeps.
func (s *source) counted(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.count(ctx)
}

// moved waits until the broker holds more than n records, and returns how many.
func (s *source) moved(ctx context.Context, n int) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("nothing moved within two minutes"))
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

// settled waits until the broker holds total records and nothing more has come
// for a while, and judges what it holds. What is missing may still come: only
// after half a minute of silence it is lost.
func (s *source) settled(ctx context.Context, truth map[string]int, total int) (Result, error) {
	last, since := -1, time.Now()
	for {
		now, err := s.counted(ctx)
		if err == nil && now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); last >= total && quiet > 2*time.Second || quiet > 30*time.Second {
			check := newChecker()
			if err := s.read(ctx, check.add); err != nil {
				return Result{}, fmt.Errorf("read what the broker holds: %w", err)
			}
			if r := check.judge(truth); r.Lost == 0 || quiet > 30*time.Second {
				return r, nil
			}
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return Result{}, err
		}
	}
}
