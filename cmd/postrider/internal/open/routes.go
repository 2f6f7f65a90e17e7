package open

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/avro"
	"github.com/postrider/postrider/schema/jsonschema"
	"github.com/postrider/postrider/schema/proto"
	"github.com/postrider/postrider/seal"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Router asks the table; nil when every message goes to its topic, plain.
func (set *Settings) Router() (envelope.Router, error) {
	table, err := set.Table()
	if table == nil {
		return nil, err
	}
	if set.frames != nil {
		return set.frames.Router(table.Route), nil
	}
	return table.Route, nil
}

// Places is Router for a relay's engine: it does not look at payloads, because the engine asks
// several times per message.
func (set *Settings) Places() (envelope.Router, error) {
	table, err := set.namesOnly()
	if table == nil {
		return nil, err
	}
	return table.Route, nil
}

// Valid reports whether a message's route accepts its payload; nil when no route validates.
func (set *Settings) Valid() (func(m *postrider.Message) bool, error) {
	table, err := set.Table()
	if table == nil || set.Schemas == "" {
		return nil, err
	}
	return func(m *postrider.Message) bool {
		_, err := table.Route(m)
		return err == nil
	}, nil
}

// Table is made of the rules and the format; nil when every message goes to its
// topic, plain.
func (set *Settings) Table() (*route.Table, error) {
	rules, err := set.rules()
	if err != nil || rules == nil {
		return nil, err
	}
	if err := set.validators(rules); err != nil {
		return nil, err
	}
	return table(rules)
}

func table(rules []route.Rule) (*route.Table, error) {
	t, err := route.New(rules)
	if bad := (*route.Error)(nil); errors.As(err, &bad) {
		return nil, exit.With(exit.Usage, err)
	}
	return t, err
}

// namesOnly is the table without validation, also for messages that were read without their
// payloads; nil as Table's.
func (set *Settings) namesOnly() (*route.Table, error) {
	rules, err := set.rules()
	if err != nil || rules == nil {
		return nil, err
	}
	for i := range rules {
		rules[i].Validate = route.Off
	}
	return table(rules)
}

// rules are those of the table, without the schemas that validate; nil as Table's.
func (set *Settings) rules() ([]route.Rule, error) {
	format, err := envelope.ParseFormat(set.Format)
	if err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	if set.Routes == nil && format == envelope.Plain && set.Schemas == "" && set.Registry == "" {
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
	if err := set.registered(rules); err != nil {
		return nil, err
	}
	return rules, nil
}

// newestRouted is how many of the newest messages show where messages go.
const newestRouted = 1000

// SealedError reports a route of the format confluent whose messages are all sealed: each
// of them would be a dead letter.
type SealedError struct {
	Route    string
	Messages int
}

// Error names both settings and the fix.
func (e *SealedError) Error() string {
	return fmt.Sprintf("route %s: format is confluent, and its newest messages (%d) are sealed by outbox.Options.Sealer, which readers of a schema registry cannot open: "+
		"remove the Sealer, or add a route before it with match: {headers: {%s: \"*\"}} and format: plain", e.Route, e.Messages, seal.HeaderAlgorithm)
}

// Sealed looks for a *[SealedError] in the newest messages. It is nil where there can be none.
func (set *Settings) Sealed(st *Outbox) (func(context.Context) error, error) {
	table, err := set.namesOnly()
	if err != nil || table == nil || set.Registry == "" || st.Samples == nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		msgs, err := st.Samples.Newest(ctx, newestRouted, 0)
		if err != nil {
			return err
		}
		sealed, others := map[string]int{}, map[string]int{}
		for i := range msgs {
			r, err := table.Route(&msgs[i])
			switch {
			case r.Format != envelope.Confluent:
			case msgs[i].Headers[seal.HeaderAlgorithm] != "":
				sealed[r.Rule]++
			case err == nil:
				others[r.Rule]++
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sealed)) {
			if others[name] == 0 {
				return &SealedError{name, sealed[name]}
			}
		}
		return nil
	}, nil
}

// Destinations lists where the newest messages go, and what the rules name
// whatever comes; that is known without a database too.
func (set *Settings) Destinations(st *Outbox) (func(context.Context) ([]string, error), error) {
	table, err := set.namesOnly()
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
			msgs, err = st.Samples.Newest(ctx, newestRouted, 0)
		}
		for i := range msgs {
			if r, err := table.Route(&msgs[i]); err == nil { // what has no route is no destination's business
				seen[r.Topic] = true
			}
		}
		return slices.Sorted(maps.Keys(seen)), err
	}, nil
}

// Waiting lists where all messages go that wait in the outbox, those that were set aside included.
// whole is false if more wait than it reads.
func (set *Settings) Waiting(st *Outbox) (func(context.Context) (names []string, whole bool, err error), error) {
	table, err := set.namesOnly()
	return func(ctx context.Context) ([]string, bool, error) {
		whole, seen := true, map[string]bool{}
		var msgs []postrider.Message
		if st.Samples != nil {
			var err error
			if msgs, err = st.Samples.Newest(ctx, newestRouted+1, 0); err != nil {
				return nil, false, err
			}
			whole = len(msgs) <= newestRouted
		}
		for _, state := range []store.State{store.Scheduled, store.Retry, store.Waiting} {
			aside, err := st.Admin.Parked(ctx, ops.ParkedQuery{State: state, Limit: newestRouted, Bare: true})
			if err != nil {
				return nil, false, err
			}
			whole = whole && len(aside) < newestRouted
			for i := range aside {
				msgs = append(msgs, aside[i].Message)
			}
		}
		for i := range msgs {
			name := msgs[i].Topic
			if table != nil {
				r, err := table.Route(&msgs[i])
				if err != nil {
					continue
				}
				name = r.Topic
			}
			seen[name] = true
		}
		now, err := st.Admin.Status(ctx)
		whole = whole && !now.Capped && now.Pending <= int64(len(msgs))
		return slices.Sorted(maps.Keys(seen)), whole, err
	}, err
}

// Compilers are the schema languages in which payloads are checked.
func Compilers() []schema.Compiler {
	return []schema.Compiler{jsonschema.Compiler(), avro.Compiler(), proto.Compiler()}
}

// validators gives the schemas to the rules that validate.
func (set *Settings) validators(rules []route.Rule) error {
	at := slices.IndexFunc(rules, func(r route.Rule) bool { return r.Validate != route.Off })
	switch {
	case at < 0 && set.Schemas == "":
		return nil
	case at < 0:
		return exit.Usagef("schemas is set, and no route validates: add `validate: warn` to a route, or remove schemas")
	case set.Schemas == "":
		return exit.Usagef("%s: a route validates, and schemas is not set: set it to the folder of schemas", rules[at].Where)
	}
	if err := SchemaFolder(set.Schemas, "correct schemas"); err != nil {
		return err
	}
	schemas, err := schema.Open(os.DirFS(set.Schemas), nil, Compilers()...)
	if err != nil {
		return WrongSchemas(set.Schemas, err)
	}
	for i := range rules {
		r := &rules[i]
		if r.Validate == route.Off {
			continue
		}
		name := r.Name
		if name == "" {
			name = fmt.Sprintf("#%d", i+1)
		}
		r.Validator = schemas
		r.Warn = func(m *postrider.Message, err error) {
			if set.Invalid != nil {
				set.Invalid(name, m, err)
			}
		}
	}
	return nil
}
