package compat

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"strings"

	js "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
	"github.com/postrider/postrider/schema/jsonschema/internal/confine"
)

// Options are the settings of a comparison. Zero fields mean the defaults named.
type Options struct {
	// Lenient assumes that writers send no field that their schema does not name, unless
	// it has additionalProperties, patternProperties or unevaluatedProperties. false: an
	// unnamed field may have any value, as the schema allows.
	Lenient bool
}

// Language compares JSON Schemas; opts may be nil.
func Language(opts *Options) evolve.Language {
	var o Options
	if opts != nil {
		o = *opts
	}
	return evolve.Language{Format: schema.JSONSchema, Reads: o.reads}
}

// Bounds of the work on one pair of schemas.
const (
	maxSteps    = 200_000 // of a proof
	maxPieces   = 64      // alternatives of a writer's schema
	maxLevel    = 64      // references and branches at one place of a document
	maxFindings = 50
)

func (o *Options) reads(writer, reader *evolve.Version) ([]evolve.Finding, error) {
	wFiles, rFiles := recorded{writer.FS, map[string][]byte{}}, recorded{reader.FS, map[string][]byte{}}
	w, err := compile(writer.Path, wFiles)
	if err != nil {
		return nil, err
	}
	r, err := compile(reader.Path, rFiles)
	if err != nil {
		return nil, err
	}
	c := newCheck(o.Lenient)
	var found []finding
	switch {
	case !c.dynamic(w) && !c.dynamic(r):
		found = c.includes([]*js.Schema{w}, r)
	case !bytes.Equal(writer.Text, reader.Text), !maps.EqualFunc(wFiles.besides(writer.Path), rFiles.besides(reader.Path), bytes.Equal):
		found = []finding{{at: r, keyword: "$dynamicRef", detail: "dynamic references are compared by their text only, and the text of the schema or of a file that it refers to changed"}}
	}
	if len(found) == 0 {
		return nil, nil
	}
	return c.report(found, w, r), nil
}

func newCheck(lenient bool) *check {
	return &check{
		lenient: lenient, steps: maxSteps,
		open: map[string]int{}, proved: map[string]bool{}, ids: map[*js.Schema]int{}, equal: map[pair]bool{}, made: map[string]*js.Schema{},
	}
}

func compile(path string, fsys fs.FS) (*js.Schema, error) {
	s, err := confine.Compile(fsys, path)
	if err != nil {
		return nil, fmt.Errorf("compat: compile %s: %w", path, err)
	}
	return s, nil
}

// recorded is a file system that keeps what was read. The library shows no anchors of a
// schema: what a dynamic reference may lead to is known by the files alone.
type recorded struct {
	fs.FS
	texts map[string][]byte
}

// ReadFile implements fs.ReadFileFS.
func (r recorded) ReadFile(name string) ([]byte, error) {
	text, err := fs.ReadFile(r.FS, name)
	if err == nil {
		r.texts[name] = text
	}
	return text, err
}

// besides are the files that were read but the schema's own.
func (r recorded) besides(path string) map[string][]byte {
	delete(r.texts, path)
	return r.texts
}

// finding is a keyword of the reader that the writer may break.
type finding struct {
	at      *js.Schema
	keyword string
	detail  string
	rule    string // "": the keyword
}

func (f *finding) place() string {
	place := confine.Place(f.at.Location)
	if f.keyword != "" {
		place += "/" + f.keyword
	}
	return place
}

// report gives the findings their examples.
func (c *check) report(found []finding, w, r *js.Schema) []evolve.Finding {
	examples := c.examples(w, r)
	taken := make([]bool, len(examples))
	var all []evolve.Finding
	seen := map[string]bool{}
	for i := range found {
		f := &found[i]
		place := f.place()
		if seen[place] || len(all) == maxFindings {
			continue
		}
		seen[place] = true
		rule, _, _ := strings.Cut(cmp.Or(f.rule, f.keyword, "false"), "/")
		one := evolve.Finding{Path: place, Rule: rule, Detail: f.detail, Undecided: true}
		for k, e := range examples {
			if e.breaks(place) {
				one.Example, one.Undecided, taken[k] = e.text, false, true
				break
			}
		}
		all = append(all, one)
	}
	for _, f := range all {
		if !f.Undecided {
			return all
		}
	}
	if len(examples) > 0 { // the example breaks a rule that no finding names
		all[0].Example, all[0].Undecided = examples[0].text, false
	}
	return all
}
