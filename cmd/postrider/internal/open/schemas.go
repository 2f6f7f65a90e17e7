package open

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// SchemasError reports what is wrong with a folder of schemas, or with a file in it.
type SchemasError struct {
	Place string // the folder, or git:REF, as the user wrote it
	Err   error
}

// Error names the folder once, and not the package that read it.
func (e *SchemasError) Error() string {
	lines := strings.Split(e.Err.Error(), "\n")
	for i := range lines {
		for _, name := range []string{"schema: ", "compat: ", "avro: ", "proto: ", "jsonschema: "} {
			lines[i] = strings.TrimPrefix(lines[i], name)
		}
	}
	return "schemas " + e.Place + ": " + strings.Join(lines, "\n")
}

// Unwrap returns Err.
func (e *SchemasError) Unwrap() error { return e.Err }

// WrongSchemas makes a usage error of what is wrong with the schemas at a place.
func WrongSchemas(place string, err error) error {
	return exit.With(exit.Usage, &SchemasError{place, err})
}

// SchemaFolder checks that a place is a folder; fix names the setting to correct.
func SchemaFolder(place, fix string) error {
	info, err := os.Stat(place)
	var path *fs.PathError
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		err = errors.New("not a folder: " + fix)
	case errors.Is(err, fs.ErrNotExist):
		err = errors.New("no such folder: create it, or " + fix)
	case errors.As(err, &path):
		err = errors.New(path.Err.Error() + ": " + fix)
	}
	return WrongSchemas(place, err)
}
