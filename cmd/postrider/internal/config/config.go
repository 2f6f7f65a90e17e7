// Package config finds the value of every setting. One precedence holds
// everywhere: flag, then environment (POSTRIDER_*), then YAML file, then default.
package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// DefaultFile is read when it exists and no other file is named.
const DefaultFile = "postrider.yml"

// annotation marks the flags that are settings: those that environment and file may give too.
const annotation = "postrider/setting"

// Mark declares flags of fs as settings.
func Mark(fs *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if err := fs.SetAnnotation(name, annotation, []string{Env(name)}); err != nil {
			return err
		}
	}
	return nil
}

// IsSetting reports whether a flag was marked.
func IsSetting(f *pflag.Flag) bool { return f.Annotations[annotation] != nil }

// Env is the environment variable of a setting: "log-level" is POSTRIDER_LOG_LEVEL.
func Env(name string) string {
	return "POSTRIDER_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Key is the key of a setting in the YAML file: "log-level" is log_level. A file may
// write either.
func Key(name string) string { return strings.ReplaceAll(name, "-", "_") }

// Error says which source holds a value that cannot be used.
type Error struct {
	Where string // "postrider.yml:3:5" or "environment POSTRIDER_LISTEN"
	What  string
}

func (e *Error) Error() string { return e.Where + ": " + e.What }

// Source is where values come from besides flags.
type Source struct {
	File      string // the YAML file, "" for [DefaultFile] if it is there
	LookupEnv func(string) (string, bool)
	Known     []string // every setting of the program: one file serves all commands
	Own       []string // those that an entry of the list relays may have of its own
}

// Apply sets the settings of fs that no flag gave. Every key of the file is
// checked against Known, also those that this command does not use.
func (s Source) Apply(fs *pflag.FlagSet) error {
	file, err := s.readFile()
	if err != nil {
		return err
	}
	values := file.values
	var first error
	fs.VisitAll(func(f *pflag.Flag) {
		if first != nil || f.Changed || !IsSetting(f) {
			return
		}
		if v, ok := s.LookupEnv(Env(f.Name)); ok {
			if err := fs.Set(f.Name, v); err != nil {
				first = &Error{"environment " + Env(f.Name), Why(err)}
			}
			return
		}
		if v, ok := values[Key(f.Name)]; ok {
			if err := fs.Set(f.Name, v.text); err != nil {
				first = &Error{v.where, Key(f.Name) + ": " + Why(err)}
			}
		}
	})
	return first
}

// Origins returns where each setting comes from that no flag gives: the place in the file, that of
// the named entry of the list relays first, or the environment variable.
func (s Source) Origins(relay string) (map[string]string, error) {
	file, err := s.readFile()
	if err != nil {
		return nil, err
	}
	from := map[string]string{}
	for _, name := range s.Known {
		if v, ok := file.values[Key(name)]; ok {
			from[name] = v.where
		}
		if _, ok := s.LookupEnv(Env(name)); ok {
			from[name] = "environment " + Env(name)
		}
		for _, r := range file.relays {
			if v, ok := r.values[Key(name)]; ok && r.Name == relay {
				from[name] = v.where
			}
		}
	}
	return from, nil
}

// Why says what is wrong with a value, without pflag's frame: it names the flag, which
// the user may not have typed. A value that may hold a credential is not shown.
func Why(err error) string {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && !redact.Shown(invalid.GetValue()) {
		return redact.Word(invalid.GetValue()) + " cannot be used: it must be a " + invalid.GetFlag().Value.Type()
	}
	if errors.As(err, &invalid) && invalid.Unwrap() != nil {
		reason := invalid.Unwrap()
		var number *strconv.NumError
		if errors.As(reason, &number) {
			reason = errors.New("it is not a number")
			if errors.Is(number.Err, strconv.ErrRange) {
				reason = errors.New("it is too large")
			}
		}
		return fmt.Sprintf("%q cannot be used: %v", invalid.GetValue(), reason)
	}
	return err.Error()
}

type value struct{ text, where string }

// contents are those of a file.
type contents struct {
	values map[string]value
	relays []Relay
	routes []Rule
}

func (s Source) readFile() (contents, error) {
	name := s.File
	if name == "" {
		name = DefaultFile
	}
	data, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) && s.File == "" {
		return contents{}, nil
	}
	if err != nil {
		return contents{}, &Error{name, "cannot be read: " + unwrapPath(err)}
	}
	return s.parse(name, data)
}

func unwrapPath(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// place writes where a node stands.
type place string

func (name place) of(n *yaml.Node) string {
	return fmt.Sprintf("%s:%d:%d", string(name), n.Line, n.Column)
}

func (s Source) parse(name string, data []byte) (contents, error) {
	var c contents
	if len(strings.TrimSpace(string(data))) == 0 {
		return c, nil
	}
	var doc yaml.Node
	if err := yaml.Load(data, &doc); err != nil {
		return c, syntaxError(name, err)
	}
	if doc.Kind == 0 || len(doc.Content) == 0 {
		return c, nil // an empty file
	}
	root, at := doc.Content[0], place(name)
	if root.Kind != yaml.MappingNode {
		return c, &Error{at.of(root), "must be a list of `setting: value` lines"}
	}
	c.values = make(map[string]value, len(root.Content)/2)
	for i := 0; i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		var err error
		switch list := len(s.Own) > 0 && c.values[k.Value] == (value{}); {
		case list && k.Value == relaysKey:
			c.relays, err = s.parseRelays(at, v)
			c.values[k.Value] = value{where: at.of(k)}
		case list && k.Value == routesKey:
			c.routes, err = parseRoutes(at, v)
			c.values[k.Value] = value{where: at.of(k)}
		default:
			err = s.parseValue(at, k, v, c.values)
		}
		if err != nil {
			return c, err
		}
	}
	delete(c.values, relaysKey)
	delete(c.values, routesKey)
	return c, nil
}

// parseValue takes one line.
func (s Source) parseValue(at place, k, v *yaml.Node, values map[string]value) error {
	key := Key(k.Value)
	switch _, twice := values[key]; {
	case twice:
		return &Error{at.of(k), fmt.Sprintf("%s is set twice", k.Value)}
	case !s.known(k.Value):
		return &Error{at.of(k), s.unknown(k.Value)}
	case v.Kind != yaml.ScalarNode:
		return &Error{at.of(v), fmt.Sprintf("%s must be a single value", k.Value)}
	}
	values[key] = value{v.Value, at.of(v)}
	return nil
}

func syntaxError(name string, err error) error {
	var le *yaml.LoadError
	if errors.As(err, &le) {
		return &Error{fmt.Sprintf("%s:%d:%d", name, le.Mark.Line, max(le.Mark.Column, 1)), "not valid YAML: " + le.Message + remedy(le.Message)}
	}
	return &Error{name, "not valid YAML"}
}

// remedy says how to repair the mistakes that people make in a file of settings; "" if it knows none.
func remedy(message string) string {
	switch {
	case strings.Contains(message, "mapping values are not allowed"):
		return "; quote a value with a colon in it, such as \"stdout:\", and begin settings without spaces"
	case strings.Contains(message, "cannot start any token"):
		return "; quote a value that begins with a sign such as %, @ or `, and indent with spaces"
	case strings.Contains(message, "found a tab"):
		return "; use spaces"
	case strings.Contains(message, "unexpected end of stream"):
		return "; a quotation mark or bracket is not closed"
	}
	return ""
}

func (s Source) known(key string) bool {
	return slices.ContainsFunc(s.Known, func(name string) bool { return Key(name) == Key(key) })
}

func (s Source) unknown(key string) string {
	best, distance := "", 3
	names := s.Known
	if len(s.Own) > 0 {
		names = append(slices.Clone(names), relaysKey, routesKey)
	}
	for _, name := range names {
		if d := editDistance(Key(name), Key(key)); d < distance {
			best, distance = Key(name), d
		}
	}
	if best == "" {
		return fmt.Sprintf("unknown setting %s: `postrider relay --help` lists them", redact.Word(key))
	}
	return fmt.Sprintf("unknown setting %s: did you mean %q?", redact.Word(key), best)
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// Environ returns the environment of a child: ours without our own settings, with those of set.
func Environ(set map[string]string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "POSTRIDER_") {
			env = append(env, kv)
		}
	}
	for k, v := range set {
		if v != "" {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// MarkAll marks flags that were declared just before, so that no name is unknown.
func MarkAll(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = Mark(fs, name)
	}
}
