package doctor

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/store/ops"
)

// halfConverted finds the bound of an unfinished conversion.
func (p *patient) halfConverted(ctx context.Context) ([]ops.Finding, error) {
	bound, err := one[bool](ctx, p, `SELECT EXISTS (SELECT 1 FROM pg_constraint c
 WHERE c.conrelid = '{{schema}}.outbox'::regclass AND c.conname = 'outbox_partition_bound')`)
	if err != nil || !bound {
		return fine("the outbox is a plain table"), err
	}
	return []ops.Finding{{
		Severity: ops.Warning, What: fmt.Sprintf("the conversion of %s into partitions is unfinished", p.table("outbox")),
		Why: "it works; an INSERT fails when about 100 thousand million more numbers have been drawn",
		Fix: "finish it: postrider migrate --partition; or give it up",
		SQL: []string{fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT outbox_partition_bound", p.table("outbox"))},
	}}, nil
}
