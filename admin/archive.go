package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Archiver stores rows before retention removes them. It returns nil only when
// they are safe. All rows of a call are of one lane, in the order of numbers.
// After a crash the same rows may be passed again.
type Archiver func(ctx context.Context, rows []ops.ArchivedRow) error

// archivedLine is one row of an archive. Numbers that may exceed the range of
// a JavaScript number are strings; the payload is base64.
type archivedLine struct {
	Lane          store.Lane        `json:"lane"`
	Seq           int64             `json:"seq,string"`
	ID            string            `json:"id"`
	Topic         string            `json:"topic"`
	Key           string            `json:"key"`
	Type          string            `json:"type"`
	Version       int64             `json:"version,omitempty"`
	SchemaVersion int               `json:"schema_version,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	CreatedAt     time.Time         `json:"created_at"`
	NotBefore     time.Time         `json:"not_before,omitzero"`
	Payload       []byte            `json:"payload_base64"`
}

// manifest is the last line of an archive, which describes the lines before it.
type manifest struct {
	Manifest struct {
		Lane   store.Lane `json:"lane"`
		First  int64      `json:"first,string"`
		Last   int64      `json:"last,string"`
		Rows   int        `json:"rows"`
		SHA256 string     `json:"sha256"` // of all lines before this one, line feeds included
	} `json:"manifest"`
}

// encode returns the JSON lines of rows. Equal rows give equal bytes.
func encode(rows []ops.ArchivedRow) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i := range rows {
		r, m := &rows[i], &rows[i].Message
		if err := enc.Encode(archivedLine{
			r.Lane, r.Seq, m.ID, m.Topic, m.Key, m.Type, m.Version, int(m.SchemaVersion), m.ContentType, m.Headers, m.Time, m.NotBefore, m.Payload,
		}); err != nil {
			return nil, fmt.Errorf("row %d: %w", r.Seq, err)
		}
	}
	sum := sha256.Sum256(b.Bytes())
	var end manifest
	end.Manifest.Lane, end.Manifest.First, end.Manifest.Last = rows[0].Lane, rows[0].Seq, rows[len(rows)-1].Seq
	end.Manifest.Rows, end.Manifest.SHA256 = len(rows), hex.EncodeToString(sum[:])
	if err := enc.Encode(end); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// ArchiveTo returns an Archiver that writes JSON lines into files of dir, named
// by lane and numbers. A file appears under its name only when it is complete
// and on disk, and is read back before the rows are removed. The same rows give
// the same file; an existing file is never overwritten.
func ArchiveTo(dir string) Archiver {
	return func(_ context.Context, rows []ops.ArchivedRow) error {
		if len(rows) == 0 {
			return nil
		}
		data, err := encode(rows)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("outbox-%04d-%019d-%019d", rows[0].Lane, rows[0].Seq, rows[len(rows)-1].Seq)
		for i := range 1000 {
			path := filepath.Join(dir, name+".jsonl")
			if i > 0 { // other rows under the same numbers: a straggler has joined them
				path = filepath.Join(dir, fmt.Sprintf("%s.%d.jsonl", name, i))
			}
			err := keepFile(path, data)
			if !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		return fmt.Errorf("archive %s: there are a thousand files of that name", name)
	}
}

// keepFile writes a new file, or accepts an existing one with the same contents. It
// returns fs.ErrExist if a different file has the name.
func keepFile(path string, data []byte) error {
	switch err := verifyFile(path, data); {
	case err == nil: // its writer may have died before the name was on disk
		return syncFolder(filepath.Dir(path))
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".outbox-*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Link(tmp.Name(), path) // like rename, but never over an existing file
	}
	if err = errors.Join(err, os.Remove(tmp.Name())); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return err
	}
	return verifyFile(path, data)
}

// syncFolder syncs a folder so that a new name survives a crash.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// verifyFile compares a file with its expected contents.
func verifyFile(path string, data []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if want := sha256.Sum256(data); !bytes.Equal(h.Sum(nil), want[:]) {
		return fmt.Errorf("archive %s holds something else: %w", path, fs.ErrExist)
	}
	return nil
}

// ArchiveBy returns an Archiver that runs a shell command for each
// batch and writes the same lines to its standard input. Exit status 0 means
// that they are safe. The command's standard error goes to errOut.
func ArchiveBy(command string, errOut io.Writer) Archiver {
	return func(ctx context.Context, rows []ops.ArchivedRow) error {
		if len(rows) == 0 {
			return nil
		}
		data, err := encode(rows)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(data), errOut
		cmd.WaitDelay = 5 * time.Second
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("archive command: %w", err)
		}
		return nil
	}
}
