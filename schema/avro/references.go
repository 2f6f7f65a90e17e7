package avro

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	lib "github.com/twmb/avro"
)

// Bounds of the shared files of a folder.
const (
	maxFile   = 1 << 20 // bytes of one
	maxShared = 1000
	maxBehind = 20 // one behind the other
)

// Reference is a file of the folder whose types a schema uses.
type Reference struct {
	Name string // the full name of the file's type; its path if that has none
	Path string
}

// References lists the files that a schema uses itself, in the order of their first use. They
// are in the folders of fsys whose names begin with "_".
func References(fsys fs.FS, path string, text []byte) ([]Reference, error) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("avro: parse %s: %w", path, err)
	}
	var all []Reference
	s := shared{fsys: fsys}
	b := builder{types: map[string]*node{}}
	b.find = func(names ...string) *node {
		at, err := s.find(names)
		if err != nil || at == "" {
			b.err = err
			return nil
		}
		if r := (Reference{s.names[at], at}); !slices.Contains(all, r) {
			all = append(all, r)
		}
		return &node{kind: "null"}
	}
	b.node(v, "")
	if err := b.failed(); err != nil {
		return nil, fmt.Errorf("avro: parse %s: %w", path, err)
	}
	return all, nil
}

// parse reads the text of a schema, and the files of fsys that it refers to.
func parse(fsys fs.FS, path string, text []byte) (*node, *lib.Schema, error) {
	p := parser{shared: shared{fsys: fsys}, types: map[string]*node{}}
	n, s, err := p.file(path, text)
	if err != nil {
		return nil, nil, fmt.Errorf("avro: parse %w", err)
	}
	return n, s, nil
}

// parser reads a schema after the files that it refers to.
type parser struct {
	shared shared
	types  map[string]*node // of the files that were read
	cache  lib.SchemaCache  // the same for the library
	open   []string         // files that are being read
}

func (p *parser) file(path string, text []byte) (*node, *lib.Schema, error) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	p.open = append(p.open, path)
	b := builder{types: map[string]*node{}}
	b.find = func(names ...string) (n *node) {
		if n = p.read(names); n == nil && b.err == nil {
			b.err = p.behind(names)
			n = p.read(names)
		}
		return n
	}
	n := b.node(v, "")
	p.open = p.open[:len(p.open)-1]
	err := b.failed()
	var s *lib.Schema
	if b.err == nil {
		var wrong error
		if s, wrong = p.cache.Parse(string(text)); err == nil {
			err = wrong
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	maps.Copy(p.types, b.types)
	return n, s, nil
}

// read returns the type of the first of the names that a file before has defined.
func (p *parser) read(names []string) *node {
	for _, name := range names {
		if n := p.types[name]; n != nil {
			return n
		}
	}
	return nil
}

// behind reads the file that defines a type, if there is one.
func (p *parser) behind(names []string) error {
	at, err := p.shared.find(names)
	switch {
	case err != nil || at == "":
		return err
	case slices.Contains(p.open, at):
		return fmt.Errorf("the references of %s lead back to it: define the types in one file", at)
	case len(p.open) > maxBehind:
		return fmt.Errorf("more than %d files refer to each other in a row: move their types into fewer files", maxBehind)
	}
	_, _, err = p.file(at, p.shared.texts[at])
	return err
}

// shared are the files of the folders that begin with "_". It reads them when a schema uses a
// type that it does not define.
type shared struct {
	fsys  fs.FS
	texts map[string][]byte   // by path
	names map[string]string   // of the reference to a file, by path
	of    map[string][]string // paths, by the names of the types that they define
}

// find returns the file that defines the first of the names that any file defines; "": none.
func (s *shared) find(names []string) (string, error) {
	if s.fsys == nil {
		return "", nil
	}
	if s.of == nil {
		if err := s.read(); err != nil {
			return "", err
		}
	}
	for _, name := range names {
		switch at := s.of[name]; len(at) {
		case 0:
		case 1:
			return at[0], nil
		default:
			return "", fmt.Errorf("%s and %s both define the type %s: remove one", at[0], at[1], name)
		}
	}
	return "", nil
}

func (s *shared) read() error {
	s.texts, s.names, s.of = map[string][]byte{}, map[string]string{}, map[string][]string{}
	folders, err := fs.ReadDir(s.fsys, ".")
	if err != nil {
		return err
	}
	for _, d := range folders {
		if !strings.HasPrefix(d.Name(), "_") {
			continue
		}
		err := fs.WalkDir(s.fsys, d.Name(), func(at string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || path.Ext(at) != ".avsc" {
				return err
			}
			return s.add(at)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *shared) add(at string) error {
	if len(s.texts) >= maxShared {
		return fmt.Errorf("the folder shares more than %d files: move their types into fewer files", maxShared)
	}
	info, err := fs.Stat(s.fsys, at)
	if err != nil || info.IsDir() {
		return err
	}
	if info.Size() > maxFile {
		return fmt.Errorf("%s has %d bytes, the limit is %d: split it", at, info.Size(), maxFile)
	}
	text, err := fs.ReadFile(s.fsys, at)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	b := builder{types: map[string]*node{}, find: func(...string) *node { return &node{kind: "null"} }}
	top := b.node(v, "")
	for name := range b.types {
		s.of[name] = append(s.of[name], at)
	}
	s.texts[at], s.names[at] = text, at
	if top.named() {
		s.names[at] = top.name
	}
	return nil
}

// failed is why the schema cannot be used; nil: it can.
func (b *builder) failed() error {
	switch {
	case b.err != nil:
		return b.err
	case b.lost != "":
		return errors.New("unknown type \"" + b.lost + "\": define it before its use, or in a file such as _shared/" + b.lost + ".avsc")
	}
	return nil
}
