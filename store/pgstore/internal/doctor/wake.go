package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// wake reports how the living relays learn of messages, and why not as they were asked to.
func (p *patient) wake(ctx context.Context) ([]ops.Finding, error) {
	alive, _, err := p.instances(ctx)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, i := range alive {
		if way, rest, off := strings.Cut(i.Wake, ", not "); off {
			f := ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("relay %s wakes by %s, not %s", i.Name, way, rest),
				Why:  "messages arrive as late as by polling; none is lost",
				Fix:  "the reason is behind the colon; `busy` passes by itself",
				Data: map[string]any{"relay": i.Name, "wake": i.Wake},
			}
			if _, why, _ := strings.Cut(rest, ": "); why == "" || strings.HasPrefix(why, "busy") {
				f.Severity = ops.OK
			}
			found = append(found, f)
		} else if i.Wake == tail.Log {
			found = append(found, ops.Finding{What: fmt.Sprintf("relay %s is woken by the log", i.Name), Data: map[string]any{"relay": i.Name, "wake": i.Wake}})
		}
	}
	columns, err := one[int](ctx, p, `SELECT coalesce(sum(cardinality(attnames)), 0)::int FROM pg_publication_tables WHERE pubname = $1`, tail.Publication(p.Schema))
	if err != nil {
		return nil, err
	}
	if columns > 0 && columns < len(tail.Columns()) {
		found = append(found, ops.Finding{
			What: "the publication has the numbers of messages alone: the log wakes a relay, and no row is sent before it is read",
			Fix:  "run `postrider migrate --tail` as the owner of the outbox",
		})
	}
	published, err := one[bool](ctx, p, `SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)`, tail.Publication(p.Schema))
	if err != nil || !published || len(found) > 0 {
		return orFine(found, "no relay reads the log"), err
	}
	err = tail.New(p.Outbox, tail.Log).Check(ctx)
	var off *tail.OffError
	if errors.As(err, &off) {
		return []ops.Finding{{
			Severity: ops.Warning, What: "the publication is there, and the log cannot wake a relay: " + off.Why,
			Why: "a relay with --wake log polls", Fix: off.Fix,
		}}, nil
	}
	return fine("the log can wake a relay; add --wake log"), err
}
