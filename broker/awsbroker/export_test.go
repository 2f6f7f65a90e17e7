package awsbroker

import (
	"context"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Polled hands a source the answer to a poll.
func Polled(s *Source, asked time.Time, msgs ...types.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := &answer{msgs: msgs, asked: asked, arrived: time.Now()}
	for i := range msgs {
		s.add(&msgs[i], from)
	}
}

// RenewWhileExtended hands out an item again and again while the answers to other
// calls extend it.
func RenewWhileExtended(ctx context.Context, s *Source) {
	g := &group{}
	it := &item{group: g, earliest: time.Now().Add(time.Hour), latest: time.Now().Add(time.Hour)}
	g.out = it
	var answers sync.WaitGroup
	answers.Go(func() {
		for range 1000 {
			s.mu.Lock()
			it.earliest = time.Now().Add(time.Hour)
			s.mu.Unlock()
		}
	})
	for range 1000 {
		s.renew(ctx, []*item{it})
	}
	answers.Wait()
}
