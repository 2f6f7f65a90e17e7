package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/examples/orders"
)

// customers is how many orders are on their way at once.
const customers = 8

// load are the customers: they place, pay and ship orders through the shop's API.
type load struct {
	url    string
	opts   Options
	client *http.Client

	begun    atomic.Int64 // orders begun
	finished atomic.Int64 // orders shipped
	kills    atomic.Int64 // kills that are over
}

func newLoad(address string, o Options) *load {
	transport := &http.Transport{MaxIdleConnsPerHost: customers}
	return &load{url: "http://" + address, opts: o, client: &http.Client{Transport: transport, Timeout: 10 * time.Second}}
}

// milestone is the number of orders begun at which kill k (from 1) is due.
func (l *load) milestone(k int64) int64 {
	return k * int64(l.opts.Orders) / int64(l.opts.Kills+1)
}

// run places all orders at the rate asked for. It holds back when a kill takes
// longer than the orders between two of them last.
func (l *load) run(ctx context.Context) error {
	defer l.client.CloseIdleConnections()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, customers)
		every = time.Second / time.Duration(l.opts.Rate)
		next  = time.Now()
	)
	for i := int64(0); i < int64(l.opts.Orders) && ctx.Err() == nil; i++ {
		for l.kills.Load() < int64(l.opts.Kills) && i >= l.milestone(l.kills.Load()+2)-1 {
			if !sleep(ctx, 5*time.Millisecond) {
				break
			}
			next = time.Now()
		}
		next = next.Add(every)
		if wait := time.Until(next); wait > 0 && !sleep(ctx, wait) {
			break
		}
		slots <- struct{}{}
		l.begun.Add(1)
		wg.Go(func() {
			defer func() { <-slots }()
			if err := l.order(ctx, i, false); err != nil {
				cancel(err)
				return
			}
			l.finished.Add(1)
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// until places orders until ctx ends, and returns when those that were begun have reached
// their end. Each value of rejects makes one that is too large for the broker.
func (l *load) until(ctx context.Context, rejects <-chan struct{}) error {
	defer l.client.CloseIdleConnections()
	var (
		placing, cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		wg              sync.WaitGroup
		slots           = make(chan struct{}, customers)
		tick            = time.NewTicker(max(time.Second/time.Duration(l.opts.Rate), time.Microsecond))
	)
	defer cancel(nil)
	defer tick.Stop()
	for i := int64(0); ; i++ {
		long := false
		select {
		case <-ctx.Done():
			wg.Wait()
			return context.Cause(placing)
		case <-placing.Done():
			wg.Wait()
			return context.Cause(placing)
		case <-rejects:
			long = true
		case <-tick.C:
		}
		slots <- struct{}{}
		l.begun.Add(1)
		wg.Go(func() {
			defer func() { <-slots }()
			if err := l.order(placing, i, long); err != nil {
				cancel(err)
				return
			}
			l.finished.Add(1)
		})
	}
}

// order takes one order through its steps. Every fifth customer's first card is
// declined after the message was written: it must never be published.
func (l *load) order(ctx context.Context, i int64, long bool) error {
	id := "order-" + strconv.FormatInt(i+1, 10)
	if err := l.post(ctx, "/orders", orders.Request{Order: id, Ref: id + "/placed", SKU: goods(i, long), Qty: int(i%3) + 1}); err != nil {
		return err
	}
	if i%5 == 0 {
		if err := l.post(ctx, "/orders/"+id+"/pay", orders.Request{Ref: id + "/declined", Declined: true}); err != nil {
			return err
		}
	}
	if err := l.post(ctx, "/orders/"+id+"/pay", orders.Request{Ref: id + "/paid"}); err != nil {
		return err
	}
	return l.post(ctx, "/orders/"+id+"/ship", orders.Request{Ref: id + "/shipped"})
}

// post calls the shop until it has answered. A conflict after a try whose
// answer was lost means that the try had worked.
func (l *load) post(ctx context.Context, path string, body orders.Request) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	var last string
	for range 50 {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+path, bytes.NewReader(data))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := l.client.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			switch resp.StatusCode {
			case http.StatusNoContent, http.StatusPaymentRequired, http.StatusConflict:
				return nil
			}
			last = resp.Status
		} else {
			last = err.Error()
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("demo: the shop does not answer %s: %s", path, last)
}
