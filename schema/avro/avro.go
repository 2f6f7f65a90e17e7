package avro

import (
	"errors"
	"fmt"
	"strings"

	lib "github.com/twmb/avro"

	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
)

// Language compares Avro schemas by the rules of schema resolution. A schema is one file:
// it has the named types that it uses.
func Language() evolve.Language {
	return evolve.Language{Format: schema.Avro, Reads: reads}
}

func reads(writer, reader *evolve.Version) ([]evolve.Finding, error) {
	w, err := parse(writer)
	if err != nil {
		return nil, err
	}
	r, err := parse(reader)
	if err != nil {
		return nil, err
	}
	found, err := missing(writer, reader)
	if err != nil {
		return nil, err
	}
	err = lib.CheckCompatibility(w, r)
	var bad *lib.CompatibilityError
	switch {
	case err == nil:
	case errors.As(err, &bad):
		f := evolve.Finding{Path: reader.Path, Rule: "resolution", Detail: bad.Detail}
		if bad.Path != "" {
			f.Path += "#" + bad.Path
		}
		if bad.WriterType != bad.ReaderType {
			f.Rule = "type"
			f.Detail = fmt.Sprintf("the writer sends %s, the reader wants %s: %s", bad.WriterType, bad.ReaderType, bad.Detail)
		}
		if len(found) == 0 || !strings.Contains(bad.Detail, "default") {
			found = append(found, f)
		}
	default:
		found = append(found, evolve.Finding{Path: reader.Path, Rule: "resolution", Detail: err.Error(), Undecided: true})
	}
	return found, nil
}

func parse(v *evolve.Version) (*lib.Schema, error) {
	s, err := lib.Parse(string(v.Text))
	if err != nil {
		return nil, fmt.Errorf("avro: parse %s: %w", v.Path, err)
	}
	return s, nil
}
