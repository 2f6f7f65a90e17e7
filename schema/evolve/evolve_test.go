package evolve_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
)

// numbers is a language in which a reader accepts its own version and those that its text
// lists by their digits.
func numbers(writer, reader *evolve.Version) ([]evolve.Finding, error) {
	if writer.Version == reader.Version || slices.Contains(reader.Text, byte('0'+writer.Version)) {
		return nil, nil
	}
	return []evolve.Finding{{Path: reader.Path, Rule: "number"}}, nil
}

func version(n int32, reads string) evolve.Version {
	return evolve.Version{File: schema.File{Subject: "s", Version: n, Format: schema.Avro, Text: []byte(reads)}}
}

// Each mode compares its own direction with the last version or with all, and the order
// of a deploy is that of the last one.
func TestCheck(t *testing.T) {
	languages := []evolve.Language{{Format: schema.Avro, Reads: numbers}}
	earlier := []evolve.Version{version(1, ""), version(2, "3")}
	for mode, want := range map[evolve.Mode]string{
		"NONE": "[] ", "BACKWARD": "[2] ", "BACKWARD_TRANSITIVE": "[2 1] 1>3", "FORWARD": "[2] ",
		"FORWARD_TRANSITIVE": "[2 1] 3>1", "FULL": "[2] ", "FULL_TRANSITIVE": "[2 1] 1>3 3>1",
	} {
		v := version(3, "2")
		r, err := evolve.Check(languages, mode, earlier, &v)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(r.Against, " ")
		for i, c := range r.Comparisons {
			got += fmt.Sprintf("%s%d>%d", map[bool]string{true: " "}[i > 0], c.Writer, c.Reader)
		}
		if got != want || r.Compatible != (len(r.Comparisons) == 0) || (r.Deploy != evolve.Either) != (mode == evolve.None) {
			t.Errorf("%s: %s, want %s; deploy %s", mode, got, want, r.Deploy)
		}
	}
	for _, tc := range []struct {
		old, now string
		want     evolve.Order
	}{{"2", "1", evolve.Either}, {"", "1", evolve.Consumers}, {"2", "", evolve.Writers}, {"", "", evolve.Neither}} {
		v := version(2, tc.now)
		if r, err := evolve.Check(languages, evolve.Backward, []evolve.Version{version(1, tc.old)}, &v); err != nil || r.Deploy != tc.want {
			t.Errorf("%q, %q: %+v, %v", tc.old, tc.now, r, err)
		}
	}
	if _, err := evolve.ParseMode("sideways"); err == nil {
		t.Error("an unknown mode was read")
	}
	a, b := version(1, ""), version(1, "")
	b.Format = schema.Protobuf
	if c, err := evolve.Compare(languages, &b, &b); err != nil || len(c.Findings) != 1 || !c.Findings[0].Undecided {
		t.Errorf("a language that is missing: %+v, %v", c, err)
	}
	if c, err := evolve.Compare(languages, &a, &b); err != nil || len(c.Findings) != 1 || c.Findings[0].Undecided {
		t.Errorf("another language: %+v, %v", c, err)
	}
}
