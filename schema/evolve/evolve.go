package evolve

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/postrider/postrider/schema"
)

// Mode is what a new version of a schema must keep. The names are those of schema
// registries.
type Mode string

// The modes. Under a transitive one a new version is compared with all earlier
// versions, otherwise with the last one.
const (
	None               Mode = "NONE"                // nothing is compared
	Backward           Mode = "BACKWARD"            // the new version reads the last one
	BackwardTransitive Mode = "BACKWARD_TRANSITIVE" // the new version reads all earlier ones
	Forward            Mode = "FORWARD"             // the last version reads the new one
	ForwardTransitive  Mode = "FORWARD_TRANSITIVE"  // all earlier versions read the new one
	Full               Mode = "FULL"                // both
	FullTransitive     Mode = "FULL_TRANSITIVE"     // both
)

// Modes lists all modes.
func Modes() []Mode {
	return []Mode{None, Backward, BackwardTransitive, Forward, ForwardTransitive, Full, FullTransitive}
}

// ParseMode reads a mode in either case, with dashes or underscores.
func ParseMode(s string) (Mode, error) {
	m := Mode(strings.ToUpper(strings.ReplaceAll(s, "-", "_")))
	if !slices.Contains(Modes(), m) {
		return "", fmt.Errorf("unknown mode %q: use NONE, BACKWARD, FORWARD or FULL, the last three also with _TRANSITIVE", s)
	}
	return m, nil
}

func (m Mode) transitive() bool { return strings.HasSuffix(string(m), "_TRANSITIVE") }
func (m Mode) backward() bool   { return m != None && !strings.HasPrefix(string(m), "FORWARD") }
func (m Mode) forward() bool    { return m != None && !strings.HasPrefix(string(m), "BACKWARD") }

// Version is one version of a subject, and the file system that its references lead into.
type Version struct {
	schema.File
	FS fs.FS
}

// Finding is one reason why a reader may refuse what a writer wrote.
type Finding struct {
	Path   string `json:"path"`           // place in the reader's schema, such as order.placed/002.json#/properties/qty/type
	Line   int    `json:"line,omitempty"` // of the place in its file, from 1; 0 is unknown
	Rule   string `json:"rule"`           // the keyword or rule that is broken
	Detail string `json:"detail"`         // what differs
	// Example is a document that the writer's schema accepts and the reader's refuses,
	// checked with both; nil where none could be made.
	Example json.RawMessage `json:"example,omitempty"`
	// Undecided marks a difference that was neither proved harmless nor shown by an
	// example. It counts as incompatible.
	Undecided bool `json:"undecided,omitempty"`
}

// Reads returns why a reader with one schema may refuse what a writer wrote with
// another; empty: it reads everything. The error is of a schema that cannot be read.
type Reads func(writer, reader *Version) ([]Finding, error)

// Language compares the schemas of one format.
type Language struct {
	Format schema.Format
	Reads  Reads
}

// Comparison is one direction between two versions.
type Comparison struct {
	Writer   int32     `json:"writer"`
	Reader   int32     `json:"reader"`
	Findings []Finding `json:"findings"`
}

// Order is which programs are deployed first.
type Order string

// The orders.
const (
	Consumers Order = "consumers first"
	Writers   Order = "writers first"
	Either    Order = "either first"
	Neither   Order = "no order is safe"
)

// Result is what became of one new version.
type Result struct {
	Subject     string       `json:"subject"`
	Version     int32        `json:"version"`
	Path        string       `json:"path"`
	Compatible  bool         `json:"compatible"`
	Against     []int32      `json:"against"` // the earlier versions that it was compared with
	Comparisons []Comparison `json:"comparisons"`
	// Deploy is which programs must be deployed first, by the version before; "" for
	// the first version and under NONE.
	Deploy Order `json:"deploy,omitempty"`
}

// Check compares a new version with its predecessors, in the order of their versions,
// in the given mode. The result has the comparisons that broke the mode.
func Check(languages []Language, mode Mode, earlier []Version, v *Version) (Result, error) {
	r := Result{Subject: v.Subject, Version: v.Version, Path: v.Path, Compatible: true, Against: []int32{}, Comparisons: []Comparison{}}
	if len(earlier) == 0 {
		return r, nil
	}
	last := &earlier[len(earlier)-1]
	back, err := Compare(languages, last, v)
	if err != nil {
		return r, err
	}
	forth, err := Compare(languages, v, last)
	if err != nil {
		return r, err
	}
	if mode == None { // both schemas were read
		return r, nil
	}
	r.Deploy = order(back, forth)
	r.broken(mode, back, forth)
	r.Against = append(r.Against, last.Version)
	if !mode.transitive() {
		return r, nil
	}
	for i := len(earlier) - 2; i >= 0; i-- {
		old := &earlier[i]
		r.Against = append(r.Against, old.Version)
		back, forth = Comparison{}, Comparison{}
		if mode.backward() {
			if back, err = Compare(languages, old, v); err != nil {
				return r, err
			}
		}
		if mode.forward() {
			if forth, err = Compare(languages, v, old); err != nil {
				return r, err
			}
		}
		r.broken(mode, back, forth)
	}
	return r, nil
}

// broken adds the comparisons that break the mode.
func (r *Result) broken(mode Mode, back, forth Comparison) {
	if mode.backward() && len(back.Findings) > 0 {
		r.Comparisons, r.Compatible = append(r.Comparisons, back), false
	}
	if mode.forward() && len(forth.Findings) > 0 {
		r.Comparisons, r.Compatible = append(r.Comparisons, forth), false
	}
}

func order(back, forth Comparison) Order {
	switch backward, forward := len(back.Findings) == 0, len(forth.Findings) == 0; {
	case backward && forward:
		return Either
	case backward:
		return Consumers
	case forward:
		return Writers
	}
	return Neither
}

// Compare finds why a reader may refuse what a writer wrote.
func Compare(languages []Language, writer, reader *Version) (Comparison, error) {
	c := Comparison{Writer: writer.Version, Reader: reader.Version, Findings: []Finding{}}
	if writer.Format != reader.Format {
		c.Findings = append(c.Findings, Finding{
			Path: reader.Path, Rule: "format",
			Detail: fmt.Sprintf("the schema language changed from %s to %s; use a new message type", writer.Format, reader.Format),
		})
		return c, nil
	}
	at := slices.IndexFunc(languages, func(l Language) bool { return l.Format == reader.Format })
	if at < 0 {
		c.Findings = append(c.Findings, Finding{
			Path: reader.Path, Rule: "format", Undecided: true,
			Detail: fmt.Sprintf("schemas of the format %s cannot be compared", reader.Format),
		})
		return c, nil
	}
	found, err := languages[at].Reads(writer, reader)
	c.Findings = append(c.Findings, found...)
	return c, err
}
