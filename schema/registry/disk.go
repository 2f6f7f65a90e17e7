package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/postrider/postrider/envelope"
)

// disk is a file with the ids that were found. A file that cannot be read or written is
// a line in the log, and never an error of a message.
type disk struct {
	file, place string
	log         *slog.Logger

	mu     sync.Mutex
	read   bool
	kept   map[envelope.Schema]*entry
	warned bool
}

// diskMost bounds the file, in bytes.
const diskMost = 4 << 20

// saved is the content of the file.
type saved struct {
	Registry string      `json:"registry"`
	Schemas  []savedItem `json:"schemas"`
}

type savedItem struct {
	Schema   envelope.Schema `json:"schema"`
	Frame    envelope.Frame  `json:"frame"`
	Protobuf bool            `json:"protobuf,omitempty"`
}

// find returns what an earlier process found.
func (d *disk) find(s envelope.Schema) *entry {
	if d.file == "" {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.load()
	return d.kept[s]
}

// keep writes what was found.
func (d *disk) keep(s envelope.Schema, e *entry) {
	if d.file == "" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.load()
	d.kept[s] = e
	if err := d.write(); err != nil {
		d.warn(err)
	}
}

func (d *disk) warn(err error) {
	if d.log != nil && !d.warned {
		d.log.Warn("schema cache unusable", "file", d.file, "error", err)
	}
	d.warned = true
}

// load reads the file once. Entries of another registry are dropped.
func (d *disk) load() {
	if d.read {
		return
	}
	d.read, d.kept = true, map[envelope.Schema]*entry{}
	info, err := os.Stat(d.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var all saved
	if err == nil {
		all, err = readDisk(d.file, info.Mode())
	}
	if err != nil {
		d.warn(err)
		return
	}
	if all.Registry != d.place {
		return
	}
	for _, item := range all.Schemas {
		frame := item.Frame
		d.kept[item.Schema] = &entry{&frame, item.Protobuf}
	}
}

// readDisk reads the file, unless every user may write it: its ids decide how
// consumers decode payloads. A pipe would keep the relay waiting.
func readDisk(name string, mode fs.FileMode) (saved, error) {
	switch {
	case !mode.IsRegular():
		return saved{}, errors.New("it is not a regular file: remove it, or correct cache")
	case mode.Perm()&0o002 != 0 && runtime.GOOS != "windows":
		return saved{}, fmt.Errorf("every user may write it (mode %#o): remove it, or set its mode to 0600", mode.Perm())
	}
	f, err := os.Open(name)
	if err != nil {
		return saved{}, err
	}
	defer f.Close()
	return parseDisk(f)
}

func parseDisk(r io.Reader) (all saved, err error) {
	text, err := io.ReadAll(io.LimitReader(r, diskMost+1))
	if err == nil && len(text) > diskMost {
		err = errors.New("the file has more than 4 MiB: remove it")
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	for _, item := range all.Schemas {
		if err == nil && !item.valid() {
			err = errors.New("the file has a frame that no registry gives: remove it")
		}
	}
	return all, err
}

// valid reports whether the frame is one that ask makes.
func (i *savedItem) valid() bool {
	p, g := i.Frame.Prefix, i.Frame.GUID
	switch i.Schema.Framing {
	case envelope.FrameID:
		return len(p) >= 5 && p[0] == 0 && len(g) == 0 && i.Frame.Inside == 0 && validIndex(p[5:])
	case envelope.FrameGUID:
		return len(g) >= 17 && g[0] == 1 && len(p) == 0 && i.Frame.Inside == 0 && validIndex(g[17:])
	case envelope.Framed:
		return len(p) == 0 && len(g) == 0 && i.Frame.Inside == 5
	}
	return false
}

func validIndex(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	_, rest, err := MessageIndex(b)
	return err == nil && len(rest) == 0
}

// write replaces the file.
func (d *disk) write() error {
	all := saved{Registry: d.place}
	for s, e := range d.kept {
		all.Schemas = append(all.Schemas, savedItem{s, *e.frame, e.protobuf})
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(d.file), ".postrider-schemas-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), d.file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
