// Package schematest checks a chain of schema versions against golden files, one
// payload per version.
//
//	func TestPlaced(t *testing.T) { schematest.Run(t, placed, "testdata/order.placed") }
//
// The folder has a payload of each version of the chain, named by its number
// (001.json, 002.json ...), and beside each what the chain makes of it in JSON
// (001.want.json ...). SCHEMATEST_UPDATE=1 writes the latter. Commit both: a
// payload is what a program wrote once and may come back for ever, so a file of an
// old version never changes.
package schematest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/postrider/postrider/schema"
)

// dropped is what stands in the want file of a payload that an upcaster drops.
const dropped = "dropped\n"

// Run reports to t, once for each version: a version without a payload, a payload of no
// version of the chain, a payload that the chain does not decode, a result that
// differs from the want file, and two results of one payload that differ.
//
// Where the chain decodes JSON it also reports what a program would lose without an
// error: a field of a payload that the type of its version does not have, and a field
// of the newest payload that is missing or different when its type is written
// again.
func Run[E any](t *testing.T, chain schema.Chain[E], dir string) {
	t.Helper()
	if err := chain.Err(); err != nil {
		t.Fatal(err)
	}
	payloads, wrong := find(dir, chain.First(), chain.Last())
	for _, err := range wrong {
		t.Error(err)
	}
	for version := chain.First(); version <= chain.Last(); version++ {
		name := payloads[version]
		if name == "" {
			continue // reported by find
		}
		t.Run(strings.TrimSuffix(name, filepath.Ext(name)), func(t *testing.T) {
			for _, err := range check(chain, version, filepath.Join(dir, name), os.Getenv("SCHEMATEST_UPDATE") == "1") {
				t.Error(err)
			}
		})
	}
}

// find returns the payloads of a folder by their version, and what is wrong with them.
func find(dir string, first, last int32) (payloads map[int32]string, wrong []error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{fmt.Errorf("schematest: %w; make the folder, with a payload such as 001.json of each version", err)}
	}
	payloads = make(map[int32]string)
	for _, f := range files {
		number, ext, _ := strings.Cut(f.Name(), ".")
		if strings.HasPrefix(ext, "want.") {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 32)
		version := int32(n)
		switch {
		case err != nil || f.IsDir():
			wrong = append(wrong, fmt.Errorf("schematest: %s: the name must be a version, such as 001.json", filepath.Join(dir, f.Name())))
		case version < first || version > last:
			wrong = append(wrong, fmt.Errorf("schematest: %s: version %d is not in the chain, which has %d to %d", filepath.Join(dir, f.Name()), version, first, last))
		case payloads[version] != "":
			wrong = append(wrong, fmt.Errorf("schematest: %s: %s has the same version; remove one", filepath.Join(dir, f.Name()), payloads[version]))
		default:
			payloads[version] = f.Name()
		}
	}
	for v := first; v <= last; v++ {
		if payloads[v] == "" {
			wrong = append(wrong, fmt.Errorf("schematest: %s: version %d has no payload; add one as %03d.json", dir, v, v))
		}
	}
	return payloads, wrong
}

// check compares what the chain makes of one payload with its want file.
func check[E any](chain schema.Chain[E], version int32, file string, update bool) (wrong []error) {
	payload, err := os.ReadFile(file)
	if err != nil {
		return []error{fmt.Errorf("schematest: %w", err)}
	}
	got, err := result(chain, version, payload)
	if err != nil {
		return []error{fmt.Errorf("schematest: %s: %w", file, err)}
	}
	if again, err := result(chain, version, payload); err != nil || !bytes.Equal(got, again) {
		wrong = append(wrong, fmt.Errorf("schematest: %s: two runs give two results (%v); an upcaster must be a pure function", file, err))
	}
	if chain.DecodesJSON() {
		wrong = append(wrong, lost(chain, version, file, payload)...)
	}
	wantFile := strings.TrimSuffix(file, filepath.Ext(file)) + ".want.json"
	if update {
		if err := os.WriteFile(wantFile, got, 0o600); err != nil {
			return append(wrong, fmt.Errorf("schematest: %w", err))
		}
	}
	want, err := os.ReadFile(wantFile)
	switch {
	case err != nil:
		wrong = append(wrong, fmt.Errorf("schematest: %w; SCHEMATEST_UPDATE=1 writes it", err))
	case !same(got, want):
		wrong = append(wrong, fmt.Errorf("schematest: %s: the chain makes\n%sof it, want\n%s", file, got, want))
	}
	return wrong
}

// result is what the chain makes of a payload, as the text of a want file.
func result[E any](chain schema.Chain[E], version int32, payload []byte) ([]byte, error) {
	e, err := chain.Decode(version, payload)
	switch {
	case errors.Is(err, schema.ErrDrop):
		return []byte(dropped), nil
	case err != nil:
		return nil, err
	}
	text, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	return append(text, '\n'), nil
}

// lost reports the fields of a payload that its type would lose.
func lost[E any](chain schema.Chain[E], version int32, file string, payload []byte) (wrong []error) {
	strict := func(data []byte, v any) error {
		d := json.NewDecoder(bytes.NewReader(data))
		d.DisallowUnknownFields()
		return d.Decode(v)
	}
	if _, err := chain.WithUnmarshal(strict).Decode(version, payload); err != nil && !errors.Is(err, schema.ErrDrop) {
		var decode *schema.DecodeError
		if errors.As(err, &decode) {
			err = decode.Raw // this is the developer's own file
		}
		return []error{fmt.Errorf("schematest: %s: a field would be lost: %w", file, err)}
	}
	if version != chain.Last() {
		return nil
	}
	e, err := chain.Decode(version, payload)
	if err != nil {
		return nil // reported already
	}
	if text, err := json.Marshal(e); err != nil || !same(text, payload) {
		wrong = append(wrong, fmt.Errorf("schematest: %s: written again the payload is %s (%v); a field was lost or invented", file, text, err))
	}
	return wrong
}

// same compares two texts as JSON, where both are JSON.
func same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := generic(a)
	y, errY := generic(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

func generic(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // large numbers keep their digits
	err = d.Decode(&v)
	return v, err
}
