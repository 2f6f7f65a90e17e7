package proto

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/postrider/postrider/internal/brackets"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
)

// Bounds of a schema with all that it imports.
const (
	maxBytes = 4 << 20
	maxFiles = 100
	maxDepth = 50 // of braces and brackets, one inside the other
)

// Options say how the messages of a schema travel.
type Options struct {
	// Binary means that payloads are never JSON: names may change then.
	Binary bool
}

// Language compares Protobuf schemas. A schema is one file, whose imports are files of
// the same folder by their paths in it, or those of google/protobuf. Nil options are the
// defaults.
func Language(o *Options) evolve.Language {
	if o == nil {
		o = &Options{}
	}
	binary := o.Binary
	return evolve.Language{Format: schema.Protobuf, Reads: func(writer, reader *evolve.Version) ([]evolve.Finding, error) {
		return reads(writer, reader, binary)
	}}
}

func reads(writer, reader *evolve.Version, binary bool) ([]evolve.Finding, error) {
	w, err := compile(writer)
	if err != nil {
		return nil, err
	}
	r, err := compile(reader)
	if err != nil {
		return nil, err
	}
	c := comparison{writer: w, reader: r, backward: writer.Version <= reader.Version, binary: binary, path: reader.Path}
	c.run()
	c.examples()
	return c.found, nil
}

// program is a compiled schema.
type program struct {
	file     protoreflect.FileDescriptor
	all      []protoreflect.FileDescriptor // with the imports, but without google/protobuf
	messages map[protoreflect.FullName]protoreflect.MessageDescriptor
	enums    map[protoreflect.FullName]protoreflect.EnumDescriptor
	names    []protoreflect.FullName // of messages and enums, in the order of the files
}

// compile reads a schema and its imports.
func compile(v *evolve.Version) (*program, error) {
	s := source{v: v, opened: map[string]bool{}}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: s.open}),
		SourceInfoMode: protocompile.SourceInfoStandard,
		MaxParallelism: 1,
	}
	files, err := compiler.Compile(context.Background(), v.Path) //nolint:forbidigo // it opens files of the folder only
	if err != nil {
		var panicked protocompile.PanicError
		if errors.As(err, &panicked) { // its text has the stack
			err = errors.New("the compiler cannot read it")
		}
		if s.err != nil { // the compiler's own error hides it
			err = s.err
		}
		return nil, fmt.Errorf("proto: parse %s: %w", v.Path, err)
	}
	p := &program{file: files[0], messages: map[protoreflect.FullName]protoreflect.MessageDescriptor{}, enums: map[protoreflect.FullName]protoreflect.EnumDescriptor{}}
	p.add(files[0], s.opened)
	return p, nil
}

// add adds a file of the folder and what it imports from there.
func (p *program) add(f protoreflect.FileDescriptor, ours map[string]bool) {
	if !ours[f.Path()] || slices.ContainsFunc(p.all, func(o protoreflect.FileDescriptor) bool { return o.Path() == f.Path() }) {
		return
	}
	p.all = append(p.all, f)
	p.declare(f)
	for i := range f.Imports().Len() {
		if in, ok := f.Imports().Get(i).FileDescriptor.(linker.File); ok {
			p.add(in, ours)
			continue
		}
		p.add(f.Imports().Get(i).FileDescriptor, ours)
	}
}

// scope is a file or a message.
type scope interface {
	Messages() protoreflect.MessageDescriptors
	Enums() protoreflect.EnumDescriptors
	Extensions() protoreflect.ExtensionDescriptors
}

func (p *program) declare(s scope) {
	for i := range s.Enums().Len() {
		e := s.Enums().Get(i)
		p.enums[e.FullName()] = e
		p.names = append(p.names, e.FullName())
	}
	for i := range s.Messages().Len() {
		m := s.Messages().Get(i)
		p.messages[m.FullName()] = m
		p.names = append(p.names, m.FullName())
		p.declare(m)
	}
}

// source opens the files of a version, within bounds.
type source struct {
	v      *evolve.Version
	opened map[string]bool
	bytes  int
	err    error // the first
}

func (s *source) open(path string) (io.ReadCloser, error) {
	text, err := s.read(path)
	if err != nil {
		if s.err == nil && !errors.Is(err, fs.ErrNotExist) {
			s.err = err
		}
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(text)), nil
}

func (s *source) read(path string) ([]byte, error) {
	text := s.v.Text
	if path != s.v.Path {
		if s.v.FS == nil || !fs.ValidPath(path) {
			return nil, fs.ErrNotExist
		}
		f, err := s.v.FS.Open(path)
		if err != nil {
			return nil, err
		}
		text, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	s.opened[path] = true
	if s.bytes += len(text); s.bytes > maxBytes || len(s.opened) > maxFiles {
		return nil, fmt.Errorf("the schema and its imports have more than %d MiB or %d files: import less", maxBytes>>20, maxFiles)
	}
	if brackets.Depth(text) > maxDepth {
		return nil, fmt.Errorf("%s nests deeper than %d levels: flatten it", path, maxDepth)
	}
	return text, nil
}
