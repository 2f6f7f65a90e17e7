package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
)

// routesKey is the list of rules that say what becomes of messages. It may stand
// outside of the list relays, for all of them, and in each of its entries:
//
//	routes:
//	  - name: finance
//	    match: {topic: billing.*, headers: {tenant: acme}}
//	    topic: finance.{topic}
//	    format: cloudevents
//	  - topic: "{topic}"
const routesKey = "routes"

// Rule is one of the list routes.
type Rule struct {
	route.Rule
	Formatted bool // it says its format; the setting format is that of the others
}

// Routes returns the rules outside of the list relays, in their order; nil
// without the list.
func (s Source) Routes() ([]Rule, error) {
	f, err := s.readFile()
	return f.routes, err
}

func parseRoutes(at place, list *yaml.Node) ([]Rule, error) {
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return nil, &Error{at.of(list), "routes must be a list of rules such as `- topic: \"{topic}\"`"}
	}
	rules := make([]Rule, 0, len(list.Content))
	for i, node := range list.Content {
		r := Rule{Rule: route.Rule{Where: at.of(node)}}
		var err error
		into := fields{at: at, of: fmt.Sprintf("route #%d", i+1), texts: map[string]*string{
			"name": &r.Name, "topic": &r.Topic, "key": &r.Key, "source": &r.Source, "subject": &r.Subject,
			"event_type": &r.Type, "data_schema": &r.DataSchema, "record": &r.Record,
		}}
		into.others = map[string]func(*yaml.Node) error{
			"match":   func(n *yaml.Node) error { return parseMatch(at, into.of, n, &r.Match) },
			"headers": func(n *yaml.Node) error { r.Headers, err = into.pairs(n); return err },
			"validate": func(n *yaml.Node) error {
				if r.Validate, err = route.ParseValidation(n.Value); err != nil {
					return &Error{at.of(n), into.of + ": " + err.Error()}
				}
				return nil
			},
			"strategy": func(n *yaml.Node) error {
				if r.Strategy, err = route.ParseStrategy(n.Value); err != nil {
					return &Error{at.of(n), into.of + ": " + err.Error()}
				}
				return nil
			},
			"framing": func(n *yaml.Node) error {
				if r.Framing, err = route.ParseFraming(n.Value); err != nil {
					return &Error{at.of(n), into.of + ": " + err.Error()}
				}
				return nil
			},
			"schema_version": func(n *yaml.Node) error {
				v, err := strconv.ParseInt(n.Value, 10, 32)
				if err != nil || v < 1 {
					return &Error{at.of(n), into.of + ": schema_version must be a number from 1 on"}
				}
				r.SchemaVersion = int32(v)
				return nil
			},
			"format": func(n *yaml.Node) error {
				if r.Format, err = envelope.ParseFormat(n.Value); err != nil {
					return &Error{at.of(n), into.of + ": " + err.Error()}
				}
				r.Formatted = true
				return nil
			},
		}
		if err := into.parse(node); err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func parseMatch(at place, of string, node *yaml.Node, m *route.Match) error {
	into := fields{at: at, of: of + ": match", texts: map[string]*string{"topic": &m.Topic, "type": &m.Type}}
	into.others = map[string]func(*yaml.Node) error{
		"headers": func(n *yaml.Node) (err error) { m.Headers, err = into.pairs(n); return err },
	}
	return into.parse(node)
}

// fields takes a mapping with known names apart.
type fields struct {
	at     place
	of     string // what it is, for errors
	texts  map[string]*string
	others map[string]func(*yaml.Node) error
}

func (f *fields) parse(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return &Error{f.at.of(node), f.of + " must be a list of `name: value` lines"}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		k, v := node.Content[i], node.Content[i+1]
		key := Key(k.Value)
		text, other := f.texts[key], f.others[key]
		switch {
		case seen[key]:
			return &Error{f.at.of(k), fmt.Sprintf("%s: %s is set twice", f.of, k.Value)}
		case text == nil && other == nil:
			names := slices.Concat(slices.Sorted(maps.Keys(f.texts)), slices.Sorted(maps.Keys(f.others)))
			return &Error{f.at.of(k), fmt.Sprintf("%s: unknown name %s: there are %s", f.of, redact.Word(k.Value), strings.Join(names, ", "))}
		case text != nil && (v.Kind != yaml.ScalarNode || v.Value == ""):
			return &Error{f.at.of(v), fmt.Sprintf("%s: %s must be a text; write templates in quotes: \"{topic}\"", f.of, k.Value)}
		case text != nil:
			*text = v.Value
		default:
			if err := other(v); err != nil {
				return err
			}
		}
		seen[key] = true
	}
	return nil
}

// pairs is a mapping of any names to texts.
func (f *fields) pairs(node *yaml.Node) (map[string]string, error) {
	if node.Kind != yaml.MappingNode {
		return nil, &Error{f.at.of(node), f.of + ": headers must be a list of `name: value` lines"}
	}
	pairs := make(map[string]string, len(node.Content)/2)
	for i := 0; i+1 < len(node.Content); i += 2 {
		k, v := node.Content[i], node.Content[i+1]
		if _, twice := pairs[k.Value]; twice {
			return nil, &Error{f.at.of(k), fmt.Sprintf("%s: header %s is set twice", f.of, k.Value)}
		}
		if v.Kind != yaml.ScalarNode {
			return nil, &Error{f.at.of(v), fmt.Sprintf("%s: header %s must be a text; write templates in quotes: \"{type}\"", f.of, k.Value)}
		}
		pairs[k.Value] = v.Value
	}
	return pairs, nil
}
