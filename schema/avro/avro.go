package avro

import (
	"errors"
	"fmt"
	"io/fs"

	lib "github.com/twmb/avro"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
)

// Language compares Avro schemas by the rules of schema resolution. A named type that a
// schema does not define itself is that of a file in a folder that begins with "_".
func Language() evolve.Language {
	return evolve.Language{Format: schema.Avro, Reads: differences}
}

func differences(writer, reader *evolve.Version) ([]evolve.Finding, error) {
	from, w, err := parse(writer.FS, writer.Path, writer.Text)
	if err != nil {
		return nil, err
	}
	to, r, err := parse(reader.FS, reader.Path, reader.Text)
	if err != nil {
		return nil, err
	}
	d := differ{root: from, top: to, path: reader.Path, seen: map[[2]*node]bool{}}
	d.walk(from, to, "", []int{})
	if len(d.found) > 0 {
		return d.found, nil
	}
	// The library has rules about logical types and aliases beside those.
	err = lib.CheckCompatibility(w, r)
	var bad *lib.CompatibilityError
	switch {
	case err == nil:
		return nil, nil
	case errors.As(err, &bad):
		f := evolve.Finding{Path: reader.Path, Rule: "resolution", Detail: bad.Detail}
		if bad.WriterType != bad.ReaderType {
			f.Detail = fmt.Sprintf("the writer sends %s, the reader wants %s: %s", bad.WriterType, bad.ReaderType, bad.Detail)
		}
		return []evolve.Finding{f}, nil
	}
	return []evolve.Finding{{Path: reader.Path, Rule: "resolution", Detail: err.Error(), Undecided: true}}, nil
}

// Compiler makes the checks of payloads by Avro schemas. A payload is one datum in Avro's
// binary encoding, without a header.
func Compiler() schema.Compiler {
	return schema.Compiler{Format: schema.Avro, Compile: func(fsys fs.FS, reader, writer *schema.File) (schema.Payloads, error) {
		r, _, err := parse(fsys, reader.Path, reader.Text)
		if err != nil {
			return nil, err
		}
		if writer == nil {
			return func(m *postrider.Message) string {
				_, wrong := decode(r, m.Payload, false)
				return placed(reader.Path, wrong)
			}, nil
		}
		w, _, err := parse(fsys, writer.Path, writer.Text)
		if err != nil {
			return nil, err
		}
		return func(m *postrider.Message) string {
			v, wrong := decode(w, m.Payload, true)
			switch {
			case wrong != "":
				return placed(writer.Path, wrong)
			case !reads(w, r, v):
				return placed(reader.Path, "does not read it by the rules of schema resolution")
			}
			return ""
		}, nil
	}}
}

// placed adds the schema's file to what is wrong.
func placed(path, wrong string) string {
	if wrong == "" {
		return ""
	}
	if wrong[0] == '/' {
		return path + "#" + wrong
	}
	return path + ": " + wrong
}
