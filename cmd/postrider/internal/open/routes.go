package open

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
)

// Router asks the table; nil when every message goes to its topic, plain.
func (set *Settings) Router() (envelope.Router, error) {
	table, err := set.Table()
	if table == nil {
		return nil, err
	}
	return table.Route, nil
}

// Table is made of the rules and the format; nil when every message goes to its
// topic, plain.
func (set *Settings) Table() (*route.Table, error) {
	format, err := envelope.ParseFormat(set.Format)
	if err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	if set.Routes == nil && format == envelope.Plain {
		return nil, nil
	}
	rules := make([]route.Rule, 0, len(set.Routes)+1)
	for _, r := range set.Routes {
		if !r.Formatted {
			r.Format = format
		}
		rules = append(rules, r.Rule)
	}
	if set.Routes == nil {
		rules = append(rules, route.Rule{Name: "format", Format: format})
	}
	table, err := route.New(rules)
	if bad := (*route.Error)(nil); errors.As(err, &bad) {
		return nil, exit.With(exit.Usage, err)
	}
	return table, err
}

// Destinations lists where the newest messages go, and what the rules name
// whatever comes; that is known without a database too.
func (set *Settings) Destinations(st *Outbox) (func(context.Context) ([]string, error), error) {
	table, err := set.Table()
	if err != nil || table == nil {
		if st.Samples == nil {
			return nil, err
		}
		return st.Samples.Topics, err
	}
	return func(ctx context.Context) ([]string, error) {
		seen := map[string]bool{}
		for _, name := range table.Destinations() {
			seen[name] = true
		}
		var msgs []postrider.Message
		var err error
		if st.Samples != nil {
			msgs, err = st.Samples.Newest(ctx, 1000, 0)
		}
		for i := range msgs {
			if r, err := table.Route(&msgs[i]); err == nil { // what has no route is no destination's business
				seen[r.Topic] = true
			}
		}
		return slices.Sorted(maps.Keys(seen)), err
	}, nil
}
