package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sync"

	"github.com/postrider/postrider/envelope"
)

// disk is a file with the ids that were found. It has a line for each, with a checksum before it: a
// changed byte must not become another id, and relays and pipes that share the file lose no
// line of each other. A file that cannot be read or written is a line in the log, and
// never an error of a message.
type disk struct {
	file, place string
	log         *slog.Logger

	mu     sync.Mutex
	read   bool
	anew   bool // the file is unusable, or full: write another one
	size   int
	kept   map[envelope.Schema]*entry
	warned bool
}

// diskMost bounds the file, in bytes.
const diskMost = 4 << 20

// saved is a line of the file.
type saved struct {
	Registry string                     `json:"registry"`
	Schema   envelope.Schema            `json:"schema"`
	Frame    *envelope.Frame            `json:"frame,omitempty"`
	Records  map[string]*envelope.Frame `json:"records,omitempty"`
	Protobuf bool                       `json:"protobuf,omitempty"`
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
	if reflect.DeepEqual(d.kept[s], e) && !d.anew {
		return
	}
	makeRoom(d.kept, s, knownMost)
	d.kept[s] = e
	if err := d.write(e); err != nil {
		d.warn(err)
	}
}

func (d *disk) warn(err error) {
	if d.log != nil && !d.warned {
		d.log.Warn("schema cache unusable", "file", d.file, "error", err)
	}
	d.warned = true
}

// load reads the file once. Lines of other registries are ignored.
func (d *disk) load() {
	if d.read {
		return
	}
	d.read, d.kept = true, map[envelope.Schema]*entry{}
	info, err := os.Stat(d.file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var lines []saved
	if err == nil {
		lines, d.size, err = readDisk(d.file, info.Mode())
	}
	if err != nil {
		d.anew = true
		d.warn(err)
	}
	for _, l := range lines {
		if l.Registry == d.place {
			makeRoom(d.kept, l.Schema, knownMost)
			d.kept[l.Schema] = &entry{l.Schema, l.Frame, l.Records, l.Protobuf}
		}
	}
}

// makeRoom deletes any other schemas where a new one would be one too many: they are asked for again.
func makeRoom(all map[envelope.Schema]*entry, s envelope.Schema, most int) {
	if all[s] != nil {
		return
	}
	for other := range all {
		if len(all) < most {
			return
		}
		delete(all, other)
	}
}

// readDisk reads the file, unless every user may write it: its ids decide how
// consumers decode payloads. A pipe would keep the relay waiting.
func readDisk(name string, mode fs.FileMode) ([]saved, int, error) {
	switch {
	case !mode.IsRegular():
		return nil, 0, errors.New("it is not a regular file: remove it, or correct cache")
	case mode.Perm()&0o002 != 0 && runtime.GOOS != "windows":
		return nil, 0, fmt.Errorf("every user may write it (mode %#o): remove it, or set its mode to 0600", mode.Perm())
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	return parseDisk(f)
}

// parseDisk returns the lines that are whole, and the size of all. With an error, others are not.
func parseDisk(r io.Reader) (all []saved, size int, err error) {
	text, err := io.ReadAll(io.LimitReader(r, diskMost+1))
	if err != nil {
		return nil, 0, err
	}
	if len(text) > diskMost {
		return nil, len(text), errors.New("the file has more than 4 MiB: remove it")
	}
	for text := range bytes.SplitSeq(text, []byte("\n")) {
		if len(text) == 0 {
			continue
		}
		var l saved
		sum, rest, _ := bytes.Cut(text, []byte(" "))
		if string(sum) != checksum(rest) || json.Unmarshal(rest, &l) != nil || !l.valid() {
			err = errors.New("the file has lines that were cut off or changed: they are ignored")
			continue
		}
		all = append(all, l)
	}
	return all, len(text), err
}

func checksum(b []byte) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(b)) }

// valid reports whether the frames are such as ask makes.
func (l *saved) valid() bool {
	if l.Frame == nil && len(l.Records) == 0 || l.Frame != nil && !validFrame(l.Schema.Framing, l.Frame) {
		return false
	}
	for _, f := range l.Records {
		if f == nil || !validFrame(l.Schema.Framing, f) {
			return false
		}
	}
	return true
}

func validFrame(framing envelope.Framing, f *envelope.Frame) bool {
	p, g := f.Prefix, f.GUID
	switch framing {
	case envelope.FrameID:
		return len(p) >= 5 && p[0] == 0 && len(g) == 0 && f.Inside == 0 && validIndex(p[5:])
	case envelope.FrameGUID:
		return len(g) >= 17 && g[0] == 1 && len(p) == 0 && f.Inside == 0 && validIndex(g[17:])
	case envelope.Framed:
		return len(p) == 0 && len(g) == 0 && f.Inside == 5
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

// saved is what the file has of an entry.
func (d *disk) saved(e *entry) *saved {
	return &saved{d.place, e.schema, e.frame, e.records, e.protobuf}
}

// line begins with a line break, for the case that the line before it was cut off.
func (l *saved) line() ([]byte, error) {
	text, err := json.Marshal(l)
	return fmt.Appendf(nil, "\n%s %s", checksum(text), text), err
}

// others returns the last whole line of each schema that the file has and this process does not know: those of
// other registries, and what another process has found since.
func (d *disk) others() (all []saved) {
	info, err := os.Stat(d.file)
	if err != nil {
		return nil
	}
	lines, _, _ := readDisk(d.file, info.Mode()) // of a file with errors, those that are whole
	type key struct {
		registry string
		schema   envelope.Schema
	}
	seen := map[key]bool{}
	for _, l := range slices.Backward(lines) {
		at := key{l.Registry, l.Schema}
		if seen[at] || l.Registry == d.place && d.kept[l.Schema] != nil {
			continue
		}
		seen[at] = true
		all = append(all, l)
	}
	return all
}

// write adds a line to the file, or replaces a file that is unusable or full.
func (d *disk) write(e *entry) error {
	line, err := d.saved(e).line()
	if err != nil {
		return err
	}
	if d.size+len(line) <= diskMost && !d.anew {
		f, err := os.OpenFile(d.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		d.size += len(line)
		_, err = f.Write(line)
		return errors.Join(err, f.Sync(), f.Close())
	}
	add := func(other *saved) error {
		more, err := other.line()
		if err == nil && len(line)+len(more) <= diskMost/2 { // the other half is for what comes
			line = append(line, more...)
		}
		return err
	}
	for _, other := range d.kept {
		if other == e {
			continue
		}
		if err := add(d.saved(other)); err != nil {
			return err
		}
	}
	for _, l := range d.others() {
		if err := add(&l); err != nil {
			return err
		}
	}
	f, err := os.CreateTemp(filepath.Dir(d.file), ".postrider-schemas-*")
	if err != nil {
		return err
	}
	_, err = f.Write(line)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), d.file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	d.size, d.anew = len(line), false
	return nil
}
