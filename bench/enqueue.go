package main

import (
	"context"

	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/bench/figures"
)

// enqueueResult is the JSON object of the enqueue workload: microseconds per message in
// one transaction, without its COMMIT, with the same driver. A figure that the product
// does not have is left out.
type enqueueResult struct {
	Workload string  `json:"workload"`
	Store    string  `json:"store"`
	Bare     float64 `json:"bare_insert_us"`
	One      float64 `json:"enqueue_1_us"`
	Hundred  float64 `json:"enqueue_100_us_per_message"`
	// Copy is the limit of batches: the same hundred rows with COPY. BareHundred is the
	// limit without COPY: one INSERT of a hundred rows.
	Copy        *float64 `json:"copy_100_us_per_message,omitempty"`
	BareHundred *float64 `json:"bare_insert_100_us_per_message,omitempty"`
	// StrictOne is One into a strict topic; the WAL is that of one message there.
	StrictOne     *float64 `json:"strict_1_us,omitempty"`
	StrictHundred *float64 `json:"strict_100_us_per_message,omitempty"`
	StrictWAL     *int64   `json:"strict_extra_wal_bytes_per_message,omitempty"`
	Ratios        struct {
		OfBare        float64  `json:"of_bare_insert"`
		Batched       float64  `json:"cheaper_in_batches_of_100"`
		OfCopy        *float64 `json:"batches_of_copy,omitempty"`
		OfBareHundred *float64 `json:"batches_of_bare_insert_100,omitempty"`
		Strict        *float64 `json:"strict_of_plain,omitempty"`
	} `json:"ratios"`
}

// inTurn are the probes in the order of a turn.
var inTurn = [...]string{database.Bare, database.One, database.StrictOne, database.Hundred, database.BareHundred, database.CopyHundred, database.StrictHundred}

// runEnqueue compares Enqueue with a bare INSERT of the same columns, in turn.
func runEnqueue(ctx context.Context, c config) (*enqueueResult, error) {
	db, err := database.Start(ctx, c.store, c.postgres)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	ways, end, err := db.Probes(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	probes := map[string]*probe{}
	const turns = 40
	for turn := range turns {
		for _, name := range inTurn {
			way := ways[name]
			if way == nil {
				continue
			}
			if probes[name] == nil {
				probes[name] = &probe{Probe: way}
			}
			if err := probes[name].run(ctx, db, turn > 4); err != nil { // the first turns fill caches and prepare statements
				return nil, err
			}
		}
	}
	us := func(name string) *float64 {
		if probes[name] == nil {
			return nil
		}
		v := figures.Middle(probes[name].us)
		return &v
	}
	ratio := func(of, to *float64) *float64 {
		if of == nil || to == nil {
			return nil
		}
		v := figures.Round(*of / *to)
		return &v
	}
	bare, one, hundred := us(database.Bare), us(database.One), us(database.Hundred)
	res := &enqueueResult{
		Workload: "enqueue", Store: c.store, Bare: *bare, One: *one, Hundred: *hundred, Copy: us(database.CopyHundred),
		BareHundred: us(database.BareHundred), StrictOne: us(database.StrictOne), StrictHundred: us(database.StrictHundred),
	}
	if strict, plain := probes[database.StrictHundred], probes[database.Hundred]; strict != nil {
		extra := (strict.wal - plain.wal) / int64(plain.Per*len(plain.us))
		res.StrictWAL = &extra
	}
	res.Ratios.OfBare = *ratio(one, bare)
	res.Ratios.Batched = *ratio(one, hundred)
	res.Ratios.OfCopy = ratio(hundred, res.Copy)
	res.Ratios.OfBareHundred = ratio(hundred, res.BareHundred)
	res.Ratios.Strict = ratio(res.StrictHundred, hundred)
	return res, nil
}

// probe is one way to insert and its cost.
type probe struct {
	*database.Probe
	us  []float64 // microseconds per message of each counted run
	wal int64     // bytes of all counted runs, where they are counted
}

func (p *probe) run(ctx context.Context, meter database.Meter, counts bool) error {
	before, err := meter.Sample(ctx)
	if err != nil {
		return err
	}
	took, err := p.Run(ctx)
	if err != nil {
		return err
	}
	after, err := meter.Sample(ctx)
	if counts {
		p.us = append(p.us, took.Seconds()*1e6/float64(p.Per))
		if more := database.Since(before.WAL, after.WAL); more != nil {
			p.wal += *more
		}
	}
	return err
}
