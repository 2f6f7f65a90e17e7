package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// heldByBooks is what a store says when rows are yet to be counted.
const heldByBooks = "(books)"

// Tend does what is due to the partitions. Where the books have yet to count the
// rows of one that is to go, they do it first. A store without partitions is a
// *ops.MissingError.
func Tend(ctx context.Context, office *ops.Office, req ops.TendRequest) (ops.Tended, error) {
	if err := office.Need(ops.CanPartition); err != nil {
		return ops.Tended{}, err
	}
	done, err := office.Partitions.Tend(ctx, req)
	if err != nil || office.Retention == nil || done.HeldBy != heldByBooks {
		return done, err
	}
	if _, err := office.Retention.Audit(ctx, ops.AuditRequest{Count: true}); err != nil {
		return done, fmt.Errorf("count before a partition goes: %w", err)
	}
	again, err := office.Partitions.Tend(ctx, req)
	again.Made += done.Made
	again.Dropped += done.Dropped
	again.Rows += done.Rows
	again.Rolled = again.Rolled || done.Rolled
	return again, err
}

// never is an age that no row has.
const never = 100 * 365 * 24 * time.Hour

// partitioned says whether rows go by dropping partitions.
func (k *Keeper) partitioned(ctx context.Context) (bool, error) {
	if k.office.Partitions == nil {
		return false, nil
	}
	p, err := k.office.Partitions.Partitions(ctx)
	return len(p.List) > 0, err
}

func (k *Keeper) tendRequest() ops.TendRequest {
	req := ops.TendRequest{OlderThan: k.opts.OlderThan, KeepBytes: k.opts.MaxBytes, OnlyEmpty: k.opts.Archive != nil}
	if k.opts.Off {
		req.OlderThan, req.KeepBytes = -1, 0
	}
	return req
}

// tend makes, changes and drops partitions, and says what is wrong with them.
func (k *Keeper) tend(ctx context.Context, done *Swept) error {
	if k.office.Partitions == nil {
		return nil
	}
	req := k.tendRequest()
	t, err := Tend(ctx, k.office, req)
	if err != nil { // what they have come to meanwhile
		if p, perr := k.office.Partitions.Partitions(ctx); perr == nil {
			t.Partitions = p
		}
	}
	done.Tended = t
	done.Rows += t.Rows
	log, before := k.opts.Logger, ""
	k.note(func(s *KeeperStats) {
		before = s.Partitions.Alarm()
		s.Removed += t.Rows
		if err == nil || len(t.List) > 0 {
			s.Partitions = t.Partitions
		}
	})
	if t.Rolled {
		log.InfoContext(ctx, "partition begun", "partition", t.Current)
	}
	if t.Dropped > 0 {
		log.InfoContext(ctx, "partitions dropped", "partitions", t.Dropped, "rows", t.Rows)
	}
	switch alarm := t.Alarm(); {
	case err != nil && len(t.List) == 0:
	case alarm != "" && alarm != before:
		log.ErrorContext(ctx, "partitions alarm raised", "what", alarm)
	case alarm == "" && before != "":
		log.InfoContext(ctx, "partitions alarm cleared")
	}
	return err
}
