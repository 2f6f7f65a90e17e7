package doctor

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// strictKeys finds topics that are strict in the table but have no trigger, which was dropped
// or left out of a restore.
func (p *patient) strictKeys(ctx context.Context) ([]ops.Finding, error) {
	type topic struct {
		Name string
		Kept bool
	}
	topics, err := rowsOf[topic](ctx, p, `SELECT s.topic, coalesce(position(quote_literal(s.topic) IN pg_get_triggerdef(g.oid)) > 0, false)
FROM {{schema}}.strict_topic s LEFT JOIN pg_trigger g ON g.tgrelid = '{{schema}}.outbox'::regclass AND g.tgname = 'zz_strict_number' ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, t := range topics {
		if !t.Kept {
			found = append(found, ops.Finding{
				Severity: ops.Critical, What: fmt.Sprintf("the topic %q is strict, and its messages are not numbered", t.Name),
				Why: "the outbox's trigger is missing or older", Fix: "create it again; what was written meanwhile has no version",
				SQL: []string{"SELECT " + db.Quote(p.Schema) + ".strict_apply()"},
			})
		}
	}
	return orFine(found, "%d strict topics", len(topics)), nil
}
