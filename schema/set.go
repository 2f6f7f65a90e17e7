package schema

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/postrider/postrider"
)

// Payloads is what a schema has against the payload of a message, without values of it;
// "": nothing. It is constant and safe for concurrent use, does no I/O and keeps nothing of m.
type Payloads func(m *postrider.Message) (reason string)

// Compiler makes the checks of payloads by schemas of one format. The modules
// schema/jsonschema, schema/avro and schema/proto have one each.
type Compiler struct {
	Format Format
	// Compile reads the schema of a reader. With the schema of a writer the check is
	// whether the reader reads what was written with that one; nil: the reader's own.
	Compile func(fsys fs.FS, reader, writer *File) (Payloads, error)
}

// SetOptions are the settings of a [Set]. Zero fields mean the defaults named.
type SetOptions struct {
	// Subject names the subject of a message; nil: its type.
	Subject func(m *postrider.Message) string
	// Required refuses a message whose subject has no schema: false, it passes.
	Required bool
}

// Set is the schemas of a file system. It is constant and safe for concurrent use. It is a
// [Checker], and so fits into outbox.Options and route.Rule.
type Set struct {
	opts     SetOptions
	subjects map[string][]compiled // by version
}

type compiled struct {
	version int32
	check   Payloads
}

var _ Checker = (*Set)(nil)

// Open reads and compiles the schemas of a file system; opts may be nil. A file of a
// format without a compiler is an error, as its payloads would pass unchecked. Errors name
// the file.
func Open(fsys fs.FS, opts *SetOptions, compilers ...Compiler) (*Set, error) {
	files, err := ReadFiles(fsys)
	if err != nil {
		return nil, err
	}
	s := &Set{subjects: make(map[string][]compiled)}
	if opts != nil {
		s.opts = *opts
	}
	for i := range files {
		f := &files[i]
		at := slices.IndexFunc(compilers, func(c Compiler) bool { return c.Format == f.Format })
		if at < 0 {
			return nil, &LayoutError{f.Path, fmt.Sprintf("schemas of the format %s are not checked here; add the Compiler of their module, or move the file to another folder", f.Format)}
		}
		check, err := compilers[at].Compile(fsys, f, nil)
		if err != nil {
			return nil, err
		}
		s.subjects[f.Subject] = append(s.subjects[f.Subject], compiled{f.Version, check})
	}
	if len(s.subjects) == 0 {
		return nil, errors.New("schema: the folder has no schema: add one as SUBJECT/001.json, .avsc or .proto")
	}
	return s, nil
}

// Subjects lists the subjects that have a schema.
func (s *Set) Subjects() []string {
	all := make([]string, 0, len(s.subjects))
	for name := range s.subjects {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// Check compares the payload of m with the schema of its subject and version; version 0
// is the oldest one. The error is an *[InvalidError], or nil. It does no I/O.
//
// A field that the schema does not name passes, unless a JSON Schema is closed
// (additionalProperties: false).
func (s *Set) Check(m *postrider.Message) error {
	subject := m.Type
	if s.opts.Subject != nil {
		subject = s.opts.Subject(m)
	}
	invalid := func(reason string) error {
		return &InvalidError{Subject: subject, Version: m.SchemaVersion, Reason: reason}
	}
	versions := s.subjects[subject]
	if len(versions) == 0 {
		if s.opts.Required {
			return invalid("the subject has no schema; add one as SUBJECT/001.json")
		}
		return nil
	}
	at := 0
	if m.SchemaVersion != 0 {
		if at = slices.IndexFunc(versions, func(c compiled) bool { return c.version == m.SchemaVersion }); at < 0 {
			known := make([]string, len(versions))
			for i, v := range versions {
				known[i] = strconv.Itoa(int(v.version))
			}
			return invalid("the version has no schema; the subject has " + strings.Join(known, ", "))
		}
	}
	if reason := versions[at].check(m); reason != "" {
		return &InvalidError{Subject: subject, Version: versions[at].version, Reason: reason}
	}
	return nil
}
