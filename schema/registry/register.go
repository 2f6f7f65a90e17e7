package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/sr"
)

// Type is the language of a schema.
type Type uint8

// The languages.
const (
	Avro Type = iota
	Protobuf
	JSON
)

// Reference is a schema that another one names.
type Reference struct {
	Name    string // as the schema writes it
	Subject string
	Version int32
}

// Schema is one version of a subject, to be registered.
type Schema struct {
	Subject    string
	Version    int32 // that the registry must give it; 0: any
	Type       Type
	Text       string
	References []Reference // which are registered already
}

// Plan is what a registry has, or would do.
type Plan struct {
	Subject      string
	Version      int32 // of the registry
	ID           int   // 0: not registered
	Registered   bool
	Incompatible []string // why the registry refuses it
}

func (s *Schema) wire() sr.Schema {
	w := sr.Schema{Schema: s.Text, Type: sr.SchemaType(s.Type)}
	for _, r := range s.References {
		w.References = append(w.References, sr.SchemaReference{Name: r.Name, Subject: r.Subject, Version: int(r.Version)})
	}
	return w
}

// Plan asks whether a schema is registered, and otherwise whether the registry accepts it
// as the next version, in the mode that it has for the subject. It changes nothing.
func (c *Client) Plan(ctx context.Context, s *Schema) (Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*c.timeout)
	defer cancel()
	p := Plan{Subject: s.Subject, Version: s.Version}
	found, err := c.sr.LookupSchema(ctx, s.Subject, s.wire())
	if err == nil {
		p.Version, p.ID, p.Registered = int32(found.Version), found.ID, true
		return p, c.sameVersion(s, p.Version)
	}
	wrong := c.wrong(s.Subject, err)
	if wrong.Code != CodeUnknown && wrong.Code != CodeSubject {
		return p, wrong
	}
	versions, err := c.sr.SubjectVersions(ctx, s.Subject)
	if err != nil {
		if wrong := c.wrong(s.Subject, err); wrong.Code != CodeSubject {
			return p, wrong
		}
	}
	p.Version = 1
	if len(versions) == 0 {
		return p, c.sameVersion(s, p.Version)
	}
	p.Version = int32(slices.Max(versions)) + 1
	if err := c.sameVersion(s, p.Version); err != nil {
		return p, err
	}
	is, err := c.sr.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), s.Subject, -2, s.wire())
	if err != nil {
		return p, c.wrong(s.Subject, err)
	}
	if !is.Is {
		if p.Incompatible = is.Messages; len(p.Incompatible) == 0 {
			p.Incompatible = []string{"the registry gives no reason: `postrider schema check --against registry` may find it"}
		}
	}
	return p, nil
}

// sameVersion refuses a number that is not the registry's: a message's schema version would
// then mean another schema.
func (c *Client) sameVersion(s *Schema, version int32) error {
	if s.Version == 0 || s.Version == version {
		return nil
	}
	return &Error{
		Code: CodeRefused, Registry: c.place, Subject: s.Subject,
		Reason: fmt.Sprintf("the file has version %d, and the registry version %d: register the versions between, or rename the file", s.Version, version),
	}
}

// Register registers a schema, unless it is registered already. Use it in deploys: a relay
// never does.
func (c *Client) Register(ctx context.Context, s *Schema) (Plan, error) {
	p, err := c.Plan(ctx, s)
	switch {
	case err != nil || p.Registered:
		return p, err
	case len(p.Incompatible) > 0:
		return p, &Error{Code: CodeRefused, Registry: c.place, Subject: s.Subject, Reason: "incompatible with the versions that are registered: " + oneLine(errors.New(p.Incompatible[0]))}
	}
	ctx, cancel := context.WithTimeout(ctx, 4*c.timeout)
	defer cancel()
	if _, err := c.sr.RegisterSchema(ctx, s.Subject, s.wire(), -1, -1); err != nil {
		return p, c.wrong(s.Subject, err)
	}
	found, err := c.sr.LookupSchema(ctx, s.Subject, s.wire())
	if err != nil {
		return p, c.wrong(s.Subject, err)
	}
	p.Version, p.ID, p.Registered = int32(found.Version), found.ID, true
	return p, c.sameVersion(s, p.Version) // two deploys at once
}
