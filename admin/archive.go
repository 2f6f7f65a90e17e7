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

// Archiver keeps rows before retention removes them. It returns nil only when
// they are safe. The rows of one call are of one lane, in the order of numbers.
// After a crash the same rows may return.
type Archiver func(ctx context.Context, rows []ops.ArchivedRow) error

// archivedLine is one row of an archive. Numbers that may exceed what a
// JavaScript number holds are strings; the payload is base64.
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

// manifest is the last line of an archive: what the lines before it are.
type manifest struct {
	Manifest struct {
		Lane   store.Lane `json:"lane"`
		First  int64      `json:"first,string"`
		Last   int64      `json:"last,string"`
		Rows   int        `json:"rows"`
		SHA256 string     `json:"sha256"` // of all lines before this one, line feeds included
	} `json:"manifest"`
}

// encode makes the JSON lines of rows. Equal rows make equal bytes.
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
// and on disk, and is read back before the rows are removed. The same rows make
// the same file again; nothing that is there is overwritten.
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

// keepFile writes a file that was not there, or finds it as it is to be. It
// returns fs.ErrExist when there is another one of that name.
func keepFile(path string, data []byte) error {
	switch err := verifyFile(path, data); {
	case err == nil: // whoever made it may have died before its name was on disk
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
		err = os.Link(tmp.Name(), path) // as rename, but never over a file that is there
	}
	if err = errors.Join(err, os.Remove(tmp.Name())); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return err
	}
	return verifyFile(path, data)
}

// syncFolder makes a new name last.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// verifyFile compares a file with what it is to hold.
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

// ArchiveBy returns an Archiver that starts a command of the shell for each
// batch and writes the same lines to its standard input. Exit status 0 means
// that they are safe. What the command prints on standard error goes to errOut.
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
			return fmt.Errorf("the archive's command: %w", err)
		}
		return nil
	}
}
