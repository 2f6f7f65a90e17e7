package main

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
)

// loadRoutes takes the file's rules outside of its list of relays, unless the
// relay that the command is about has its own.
func (a *app) loadRoutes(src config.Source) error {
	if a.set.routes != nil {
		return nil
	}
	var err error
	a.set.routes, err = src.Routes()
	return err
}

// router asks the table; nil when every message goes to its topic, plain.
func (set *settings) router() (envelope.Router, error) {
	table, err := set.table()
	if table == nil {
		return nil, err
	}
	return table.Route, nil
}

// table is made of the rules and the format; nil when every message goes to its
// topic, plain.
func (set *settings) table() (*route.Table, error) {
	format, err := envelope.ParseFormat(set.format)
	if err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	if set.routes == nil && format == envelope.Plain {
		return nil, nil
	}
	rules := make([]route.Rule, 0, len(set.routes)+1)
	for _, r := range set.routes {
		if !r.Formatted {
			r.Format = format
		}
		rules = append(rules, r.Rule)
	}
	if set.routes == nil {
		rules = append(rules, route.Rule{Name: "format", Format: format})
	}
	table, err := route.New(rules)
	if bad := (*route.Error)(nil); errors.As(err, &bad) {
		return nil, exit.With(exit.Usage, err)
	}
	return table, err
}

// destinations lists where the newest messages go, and what the rules name
// whatever comes; that is known without a database too.
func (set *settings) destinations(st *opened) (func(context.Context) ([]string, error), error) {
	table, err := set.table()
	if err != nil || table == nil {
		return st.topics, err
	}
	return func(ctx context.Context) ([]string, error) {
		seen := map[string]bool{}
		for _, name := range table.Destinations() {
			seen[name] = true
		}
		var msgs []postrider.Message
		var err error
		if st.newestMessages != nil {
			msgs, err = st.newestMessages(ctx, 1000, 0)
		}
		for i := range msgs {
			if r, err := table.Route(&msgs[i]); err == nil { // what has no route is no destination's business
				seen[r.Topic] = true
			}
		}
		return slices.Sorted(maps.Keys(seen)), err
	}, nil
}
