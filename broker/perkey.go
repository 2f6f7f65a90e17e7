package broker

import (
	"context"
	"sync"

	"github.com/postrider/postrider"
)

// PerKey delivers msgs through send: the messages of one key one after the
// other, at most parallel keys at once. After a message of a key has failed the
// rest of that key is answered with [ErrNotTried] and not sent, which gives the
// prefix property to any client that answers per message. Messages without a
// key are sent on their own. The result is that of [Sink].Deliver.
func PerKey(ctx context.Context, msgs []postrider.Message, parallel int, send func(context.Context, postrider.Message) error) []error {
	groups := groupByKey(msgs)
	var (
		wg   sync.WaitGroup
		slot = make(chan struct{}, max(parallel, 1))
		errs = make([]error, len(msgs))
	)
	for _, g := range groups {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			deliverInOrder(ctx, msgs, g, errs, send)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return errs
		}
	}
	return nil
}

func deliverInOrder(ctx context.Context, msgs []postrider.Message, group []int, errs []error, send func(context.Context, postrider.Message) error) {
	for n, i := range group {
		if err := send(ctx, msgs[i]); err != nil {
			errs[i] = err
			for _, j := range group[n+1:] {
				errs[j] = Failed(ErrNotTried, "", "")
			}
			return
		}
	}
}

func groupByKey(msgs []postrider.Message) [][]int {
	var groups [][]int
	at := make(map[string]int, len(msgs))
	for i := range msgs {
		if key := msgs[i].Key; key != "" {
			if g, ok := at[key]; ok {
				groups[g] = append(groups[g], i)
				continue
			}
			at[key] = len(groups)
		}
		groups = append(groups, []int{i})
	}
	return groups
}
