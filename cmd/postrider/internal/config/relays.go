package config

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// relaysKey is the list of the file that names several relays of one process:
//
//	broker: kafka://k1:9092
//	relays:
//	  - name: shop
//	    store: postgres://db1/shop
//	  - name: billing
//	    store: postgres://db2/billing
//	    pipe: audit
//
// What stands outside of the list is the default of every entry.
const relaysKey = "relays"

// Relay is one entry of the list relays.
type Relay struct {
	Name   string
	Where  string // "postrider.yml:3:5"
	Routes []Rule // nil: those of the file outside of the list
	values map[string]value
}

var relayName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Relays returns the entries of the list relays in their order.
func (s Source) Relays() ([]Relay, error) {
	f, err := s.readFile()
	return f.relays, err
}

func (s Source) parseRelays(at place, list *yaml.Node) ([]Relay, error) {
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		return nil, &Error{at.of(list), "relays must be a list of entries that begin with `- name: NAME`"}
	}
	relays := make([]Relay, 0, len(list.Content))
	for _, entry := range list.Content {
		r, err := s.parseRelay(at, entry)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(relays, func(o Relay) bool { return o.Name == r.Name }) {
			return nil, &Error{r.Where, fmt.Sprintf("there are two relays %s", redact.Word(r.Name))}
		}
		relays = append(relays, r)
	}
	return relays, nil
}

func (s Source) parseRelay(at place, entry *yaml.Node) (Relay, error) {
	r := Relay{Where: at.of(entry), values: map[string]value{}}
	if entry.Kind != yaml.MappingNode {
		return r, &Error{r.Where, "an entry of relays begins with `- name: NAME`, and its settings follow"}
	}
	for i := 0; i+1 < len(entry.Content); i += 2 { // the name first: errors name it
		if k, v := entry.Content[i], entry.Content[i+1]; k.Value == "name" && v.Kind == yaml.ScalarNode {
			r.Name = v.Value
		}
	}
	if !relayName.MatchString(r.Name) {
		return r, &Error{r.Where, fmt.Sprintf("the name of a relay is %s: use letters, digits, dots, dashes and underscores, at most 63", redact.Word(r.Name))}
	}
	own := Source{Known: append([]string{"name"}, s.Own...)}
	for i := 0; i+1 < len(entry.Content); i += 2 {
		k, v := entry.Content[i], entry.Content[i+1]
		if k.Value == routesKey && r.Routes == nil {
			var err error
			if r.Routes, err = parseRoutes(at, v); err != nil {
				return r, prefixed(r.Name, err)
			}
			continue
		}
		if !own.known(k.Value) && s.known(k.Value) {
			return r, &Error{at.of(k), fmt.Sprintf("relay %s: %s is one for the whole process: set it outside of the list", r.Name, k.Value)}
		}
		if err := own.parseValue(at, k, v, r.values); err != nil {
			return r, prefixed(r.Name, err)
		}
	}
	delete(r.values, "name")
	return r, nil
}

// prefixed names the relay in an error of its entry.
func prefixed(name string, err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // made a line above
		return &Error{e.Where, fmt.Sprintf("relay %s: %s", name, e.What)}
	}
	return err
}

// Value is what the entry says of a setting, "" if nothing.
func (r Relay) Value(name string) string { return r.values[Key(name)].text }

// Apply sets the settings of fs that the entry names and no flag gave.
func (r Relay) Apply(fs *pflag.FlagSet) error {
	var first error
	fs.VisitAll(func(f *pflag.Flag) {
		v, ok := r.values[Key(f.Name)]
		if first != nil || f.Changed || !ok || !IsSetting(f) {
			return
		}
		if err := fs.Set(f.Name, v.text); err != nil {
			first = prefixed(r.Name, &Error{v.where, Key(f.Name) + ": " + Why(err)})
		}
	})
	return first
}
