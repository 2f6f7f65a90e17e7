package open

import (
	"slices"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

// Schemas opens the schema registry that the settings name. It does no I/O.
func Schemas(set *Settings) (*registry.Client, error) {
	if set.Registry == "" {
		return nil, exit.Usagef("no schema registry: give --registry, POSTRIDER_REGISTRY or registry in the file, such as https://HOST:8081")
	}
	c, err := registry.Open(set.Registry, &registry.Options{Logger: set.Log})
	if err != nil {
		return nil, exit.Usagef("registry %s cannot be used: %w", redact.Place(set.Registry), err)
	}
	return c, nil
}

// registered checks that routes of the format confluent have a registry, and that it is set
// for such a route only.
func (set *Settings) registered(rules []route.Rule) error {
	at := slices.IndexFunc(rules, func(r route.Rule) bool { return r.Format == envelope.Confluent })
	switch {
	case at < 0 && set.Registry != "":
		return exit.Usagef("registry is set, and no route has the format confluent: add `format: confluent` to a route, or remove registry")
	case at >= 0 && set.Registry == "":
		if rules[at].Where != "" {
			return exit.Usagef("%s: the format confluent needs a schema registry: set registry to its URL", rules[at].Where)
		}
		return exit.Usagef("the format confluent needs a schema registry: give --registry, such as https://HOST:8081")
	}
	return nil
}

// framed opens a sink, with the schema registry before it where one is set.
func (set *Settings) framed(sink func(set *Settings) (*Publisher, error)) (*Publisher, error) {
	if set.Registry == "" {
		return sink(set)
	}
	schemas, err := Schemas(set)
	if err != nil {
		return nil, err
	}
	with := *set
	with.frames = schemas
	to, err := sink(&with)
	if err != nil {
		return nil, err
	}
	end := to.Close
	to.Sink, to.Close = schemas.Sink(to.Sink), func() {
		end()
		schemas.Close()
	}
	return to, nil
}
