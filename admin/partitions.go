package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// heldByBooks is a store's name for the books as holder of rows that are not counted yet.
const heldByBooks = "(books)"

// Tend creates, changes and drops due partitions. Before a partition is dropped, the books
// count its rows. For a store without partitions it returns a
// *ops.MissingError.
func Tend(ctx context.Context, office *ops.Office, req ops.TendRequest) (ops.Tended, error) {
	if err := office.Need(ops.CanPartition); err != nil {
		return ops.Tended{}, err
	}
	done, err := office.Partitions.Tend(ctx, req)
	if err != nil || office.Books == nil || done.HeldBy != heldByBooks {
		return done, err
	}
	if _, err := office.Books.Audit(ctx, ops.AuditRequest{Count: true}); err != nil {
		return done, fmt.Errorf("count the rows of a partition before dropping it: %w", err)
	}
	again, err := office.Partitions.Tend(ctx, req)
	again.Made += done.Made
	again.Dropped += done.Dropped
	again.Rows += done.Rows
	again.Rolled = again.Rolled || done.Rolled
	return again, err
}

// never is an age above that of any row.
const never = 100 * 365 * 24 * time.Hour

// partitioned reports whether rows are removed by dropping partitions.
func (k *Keeper) partitioned(ctx context.Context) (bool, error) {
	if k.office.Partitions == nil {
		return false, nil
	}
	p, err := k.office.Partitions.Partitions(ctx)
	return len(p.List) > 0, err
}

func (k *Keeper) tendRequest() ops.TendRequest {
	req := ops.TendRequest{OlderThan: k.opts.OlderThan, KeepBytes: k.opts.MaxBytes, OnlyEmpty: k.opts.Archive != nil, Actor: k.opts.Actor, Reason: k.opts.Reason}
	if k.opts.Off {
		req.OlderThan, req.KeepBytes = -1, 0
	}
	return req
}

// tend creates, changes and drops partitions, and logs alarms about them.
func (k *Keeper) tend(ctx context.Context, done *Swept) error {
	if k.office.Partitions == nil {
		return nil
	}
	req := k.tendRequest()
	t, err := Tend(ctx, k.office, req)
	if err != nil { // read their present state
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
