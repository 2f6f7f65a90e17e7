package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/sr"
)

// Bounds of what a schema refers to.
const (
	maxReferences = 100
	maxReferred   = 20 // one behind the other
)

// Stored is one version of a subject, as a registry has it.
type Stored struct {
	Version int32
	Type    Type
	Text    string
	// Files are the schemas that it refers to, by the names in its text; those of a
	// referred schema are in it as well.
	Files map[string]string
}

// Versions returns the versions of a subject, oldest first; none: the registry does not know it.
func (c *Client) Versions(ctx context.Context, subject string) ([]Stored, error) {
	asked := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		if err := do(ctx); err != nil {
			return c.wrong(subject, err)
		}
		return nil
	}
	var numbers []int
	err := asked(func(ctx context.Context) (err error) {
		numbers, err = c.sr.SubjectVersions(ctx, subject)
		return err
	})
	if wrong := (*Error)(nil); errors.As(err, &wrong) && wrong.Code == CodeSubject {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(numbers)
	var all []Stored
	for _, n := range numbers {
		files := map[string]string{}
		var fetch func(of string, version, deep int) (sr.SubjectSchema, error)
		fetch = func(of string, version, deep int) (one sr.SubjectSchema, err error) {
			if deep > maxReferred || len(files) > maxReferences {
				return one, &Error{Code: CodeRefused, Registry: c.place, Subject: subject, Reason: fmt.Sprintf("it refers to more than %d schemas, or to more than %d one behind the other", maxReferences, maxReferred)}
			}
			if err := asked(func(ctx context.Context) (err error) {
				one, err = c.sr.SchemaByVersion(ctx, of, version)
				return err
			}); err != nil {
				return one, err
			}
			for _, r := range one.References {
				if _, known := files[r.Name]; known {
					continue
				}
				files[r.Name] = ""
				to, err := fetch(r.Subject, r.Version, deep+1)
				if err != nil {
					return one, err
				}
				files[r.Name] = to.Schema.Schema
			}
			return one, nil
		}
		found, err := fetch(subject, n, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, Stored{int32(found.Version), Type(found.Type), found.Schema.Schema, files})
	}
	return all, nil
}
