package starter

import (
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/envelope"
)

// object is a node of the schema.
type object = map[string]any

// duration is what [time.ParseDuration] accepts, without a sign.
const duration = `(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*)`

// Schema is the JSON Schema of the file: the settings of all commands, the list relays,
// whose entries have the settings own, and the list routes.
func Schema(root *cobra.Command, own *pflag.FlagSet) any {
	properties := object{
		"relays": object{
			"description": "several relays of one process; what is outside of the list is their default",
			"type":        "array", "minItems": 1, "items": object{"$ref": "#/$defs/relay"},
		},
		"routes": object{"$ref": "#/$defs/routes"},
	}
	for _, p := range parts(root) {
		for _, f := range p.flags {
			both(properties, f.Name, setting(f))
		}
	}
	relay := object{
		"name":   object{"description": "name of the relay for --relay, logs and metrics", "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
		"routes": object{"$ref": "#/$defs/routes"},
	}
	own.VisitAll(func(f *pflag.Flag) { both(relay, f.Name, setting(f)) })
	return object{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Settings of postrider",
		"type":    "object", "properties": properties, "additionalProperties": false,
		"$defs": object{
			"relay":  object{"type": "object", "properties": relay, "required": []string{"name"}, "additionalProperties": false},
			"routes": object{"description": "rules for destination, key and format; the first that matches counts", "type": "array", "minItems": 1, "items": route()},
		},
	}
}

// both adds a property under both names that a file may use.
func both(properties object, name string, schema object) {
	properties[config.Key(name)] = schema
	if name != config.Key(name) {
		properties[name] = object{"$ref": "#/properties/" + config.Key(name)}
	}
}

// setting is the schema of one value.
func setting(f *pflag.Flag) object {
	s := object{"description": f.Usage}
	if f.DefValue != "" && f.DefValue != "[]" {
		s["default"] = f.DefValue
	}
	if values := allowed()[f.Name]; values != nil {
		s["enum"] = values
		return s
	}
	switch kind := f.Value.Type(); {
	case f.Name == "retention":
		s["type"], s["pattern"], s["maximum"] = []string{"string", "integer"}, "^(off|"+duration+")$", 0
	case kind == "bool":
		s["type"] = "boolean"
	case kind == "int", kind == "int64":
		s["type"] = "integer"
	case kind == "float64":
		s["type"] = "number"
	case kind == "duration":
		s["type"], s["pattern"] = []string{"string", "integer"}, "^"+duration+"$"
		s["maximum"] = 0 // a number without a unit is a duration only when it is 0
	case kind == "durationSlice":
		s["type"], s["pattern"] = "string", "^"+duration+"(,"+duration+")*$"
	case kind == "size":
		s["type"], s["minimum"] = []string{"string", "integer"}, 0
	default:
		s["type"] = "string"
	}
	return s
}

// allowed lists the values of settings that have few.
func allowed() map[string][]string {
	return map[string][]string{
		"output":     output.Formats(),
		"log-format": {"text", "json"},
		"log-level":  {"debug", "info", "warn", "error"},
		"format":     formats(),
	}
}

func formats() (names []string) {
	for _, f := range envelope.Formats() {
		names = append(names, f.String())
	}
	slices.Sort(names)
	return names
}

// route is one rule of the list routes, see package config.
func route() object {
	text := func(what string) object { return object{"description": what, "type": "string", "minLength": 1} }
	// A header may be written as any scalar.
	headers := object{"type": "object", "additionalProperties": object{"type": []string{"string", "number", "boolean"}}}
	match := object{"topic": text("pattern of the topic"), "type": text("pattern of the type"), "headers": headers}
	rule := object{
		"name":     text("name of the rule for people"),
		"match":    object{"type": "object", "properties": match, "additionalProperties": false},
		"topic":    text("template of the destination"),
		"key":      text("template of the broker's key"),
		"headers":  headers,
		"source":   text("template of the CloudEvents source"),
		"subject":  text("template of the CloudEvents subject"),
		"format":   object{"description": "wire format", "enum": formats()},
		"validate": object{"description": "what becomes of a payload that breaks its schema", "enum": []string{"off", "warn", "reject"}},
		"strategy": object{"description": "what names the subject in the schema registry", "enum": []string{"topic", "record", "topic-record"}},
		"framing":  object{"description": "where the schema id travels; framed: the writer has put it before the payload", "enum": []string{"id", "guid", "framed"}},
		"record":   text("template of the record's full name"),
	}
	for name, what := range map[string]object{
		"event_type":     text("template of the CloudEvents type"),
		"data_schema":    text("template of the CloudEvents dataschema"),
		"schema_version": {"description": "version of the subject in the schema registry, of messages without one", "type": "integer", "minimum": 1, "maximum": math.MaxInt32},
	} {
		rule[name] = what
		rule[strings.ReplaceAll(name, "_", "-")] = what
	}
	return object{"type": "object", "properties": rule, "additionalProperties": false}
}
