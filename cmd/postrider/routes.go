package main

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
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

// router is made of the rules and the format; nil when every message goes to its
// topic, plain.
func (set *settings) router() (envelope.Router, error) {
	format, err := envelope.ParseFormat(set.format)
	if err != nil {
		return nil, &usageError{err}
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
		return nil, &usageError{err}
	}
	return table.Route, err
}

// destinations lists where the newest messages go.
func (set *settings) destinations(st *opened) (func(context.Context) ([]string, error), error) {
	router, err := set.router()
	if err != nil || router == nil || st.newestMessages == nil {
		return st.topics, err
	}
	return func(ctx context.Context) ([]string, error) {
		msgs, err := st.newestMessages(ctx, 2000)
		if err != nil {
			return nil, err
		}
		seen := map[string]bool{}
		for i := range msgs {
			if r, err := router(&msgs[i]); err == nil { // what has no route is no destination's business
				seen[r.Topic] = true
			}
		}
		return slices.Sorted(maps.Keys(seen)), nil
	}, nil
}
