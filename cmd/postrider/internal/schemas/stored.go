package schemas

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"strings"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
	"github.com/postrider/postrider/schema/registry"
)

// fromRegistry is the value of --against for the schema registry.
const fromRegistry = "registry"

// stored reads the versions of subjects from the schema registry.
func (a *App) stored(ctx context.Context, subjects []string, template string) (*folder, error) {
	if !strings.Contains(template, "{subject}") && len(subjects) > 1 {
		return nil, exit.Usagef("--subject %s names one subject, and %d are meant: name one of %s, or write {subject} in it", template, len(subjects), strings.Join(subjects, ", "))
	}
	c, err := a.Registry()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f := &folder{place: "the registry", subjects: map[string][]evolve.Version{}}
	for _, s := range subjects {
		all, err := c.Versions(ctx, strings.ReplaceAll(template, "{subject}", s))
		if err != nil {
			return nil, wrongRegistry(f.place, err)
		}
		for _, one := range all {
			v, err := versionOf(s, &one)
			if err != nil {
				return nil, err
			}
			f.subjects[s] = append(f.subjects[s], v)
		}
	}
	return f, nil
}

// versionOf makes a version whose references are files at the places that its text names.
func versionOf(subject string, s *registry.Stored) (evolve.Version, error) {
	format := map[registry.Type]schema.Format{registry.Avro: schema.Avro, registry.Protobuf: schema.Protobuf, registry.JSON: schema.JSONSchema}[s.Type]
	v := evolve.Version{File: schema.File{Subject: subject, Version: s.Version, Format: format, Path: fmt.Sprintf("%s/%03d.%s", subject, s.Version, format), Text: []byte(s.Text)}}
	texts := map[string]string{v.Path: s.Text}
	for name, text := range s.Files {
		at := registry.Place(s.Type, v.Path, name)
		if s.Type == registry.Avro { // a name is no path
			at = fmt.Sprintf("_references/%d.avsc", len(texts))
		}
		texts[at] = text
	}
	fsys, err := inMemory(texts)
	v.FS = fsys
	return v, err
}

// inMemory is a file system of texts.
func inMemory(texts map[string]string) (fs.FS, error) {
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	for name, text := range texts {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(packed.Bytes()), int64(packed.Len()))
}
