package schema

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/postrider/postrider"
)

// CodeInvalid is the code of an [InvalidError].
const CodeInvalid = "SCHEMA_INVALID" // the payload breaks the schema of its version: correct the writer or the schema, then edit or retry

// Format is a schema language, by the ending of its files.
type Format string

// The formats that a folder of schemas may hold.
const (
	JSONSchema Format = "json"
	Avro       Format = "avsc"
	Protobuf   Format = "proto"
)

// maxFile bounds a schema's file, in bytes.
const maxFile = 1 << 20

// File is the schema of one version of a subject, which is a message type unless the
// reader of the files says otherwise.
type File struct {
	Subject string
	Version int32
	Format  Format
	Path    string // inside the file system, with slashes
	Text    []byte
}

// LayoutError reports a file that does not belong into a folder of schemas.
type LayoutError struct {
	Path string
	What string // what is wrong, and how to fix it
}

// Error names the file and the fix.
func (e *LayoutError) Error() string { return "schema: " + e.Path + ": " + e.What }

// ReadFiles reads the schemas of a file system, such as os.DirFS("schemas") or an
// embed.FS, sorted by subject and version:
//
//	order.placed/001.json
//	order.placed/002.json
//	order.paid/001.avsc
//
// A folder is a subject, and a file one version of it. Folders that begin with "_"
// hold what schemas share by reference; they and names that begin with "." are not
// read, nor are files beside the folders. Links are followed, as a Kubernetes ConfigMap
// is a folder of links. Errors of the layout are *[LayoutError]s, all of them at once.
func ReadFiles(fsys fs.FS) ([]File, error) {
	subjects, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return nil, fmt.Errorf("schema: read the folder of schemas: %w", err)
	}
	var all []File
	var wrong []error
	for _, d := range subjects {
		if strings.HasPrefix(d.Name(), "_") || strings.HasPrefix(d.Name(), ".") {
			continue
		}
		info, err := follow(fsys, d.Name(), d)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		if !info.IsDir() {
			continue
		}
		of, err := readSubject(fsys, d.Name())
		all, wrong = append(all, of...), append(wrong, err)
	}
	return all, errors.Join(wrong...)
}

// follow describes an entry, or the file or folder that a link leads to.
func follow(fsys fs.FS, name string, d fs.DirEntry) (info fs.FileInfo, err error) {
	if d.Type() != fs.ModeSymlink {
		if info, err = d.Info(); err != nil {
			return nil, fmt.Errorf("schema: %s: %w", name, err)
		}
		return info, nil
	}
	if info, err = fs.Stat(fsys, name); err != nil {
		return nil, &LayoutError{name, fmt.Sprintf("the link cannot be followed: %v; correct or remove it", err)}
	}
	return info, nil
}

func readSubject(fsys fs.FS, subject string) (all []File, err error) {
	files, err := fs.ReadDir(fsys, subject)
	if err != nil {
		return nil, fmt.Errorf("schema: read the subject %s: %w", subject, err)
	}
	var wrong []error
	for _, d := range files {
		if strings.HasPrefix(d.Name(), ".") {
			continue
		}
		f := File{Subject: subject, Path: path.Join(subject, d.Name())}
		if err := f.read(fsys, d); err != nil {
			wrong = append(wrong, err)
			continue
		}
		if at := slices.IndexFunc(all, func(o File) bool { return o.Version == f.Version }); at >= 0 {
			wrong = append(wrong, &LayoutError{f.Path, all[at].Path + " has the same version; remove one"})
			continue
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b File) int { return int(a.Version - b.Version) })
	return all, errors.Join(wrong...)
}

func (f *File) read(fsys fs.FS, d fs.DirEntry) error {
	info, err := follow(fsys, f.Path, d)
	if err != nil {
		return err
	}
	number, ext, _ := strings.Cut(d.Name(), ".")
	version, err := strconv.ParseInt(number, 10, 32)
	f.Version, f.Format = int32(version), Format(ext)
	switch {
	case info.IsDir():
		return &LayoutError{f.Path, "a subject has no folders; move the files up, or into a folder that begins with _"}
	case err != nil || version < 1:
		return &LayoutError{f.Path, "the name must be a version from 1 on, such as 001.json"}
	case !slices.Contains([]Format{JSONSchema, Avro, Protobuf}, f.Format):
		return &LayoutError{f.Path, "the ending must be json (JSON Schema), avsc (Avro) or proto (Protobuf)"}
	}
	if info.Size() > maxFile {
		return &LayoutError{f.Path, fmt.Sprintf("it has %d bytes, the limit is %d; split it, with references", info.Size(), maxFile)}
	}
	if f.Text, err = fs.ReadFile(fsys, f.Path); err != nil {
		return fmt.Errorf("schema: read %s: %w", f.Path, err)
	}
	return nil
}

// A Checker compares a payload with its schema. Its error is best an *[InvalidError].
// It must not change or keep the message, does no I/O and is called from many
// goroutines.
type Checker interface {
	Check(m *postrider.Message) error
}

// InvalidError reports a payload that its schema refuses. It matches
// [postrider.ErrInvalid].
type InvalidError struct {
	Subject string
	Version int32
	// Reason is what the schema asks for and where, by places of the schema: names and
	// values of the payload are not in it.
	Reason string
}

// ErrorCode is [CodeInvalid].
func (e *InvalidError) ErrorCode() string { return CodeInvalid }

// Error names subject, version and rule.
func (e *InvalidError) Error() string { return "payload " + e.Refusal() }

// Refusal is Error without its first word, for errors that name the field apart.
func (e *InvalidError) Refusal() string {
	return fmt.Sprintf("does not match version %d of the schema %s: %s", e.Version, e.Subject, e.Reason)
}

// Is makes errors.Is(err, postrider.ErrInvalid) true.
func (e *InvalidError) Is(target error) bool { return target == postrider.ErrInvalid }
