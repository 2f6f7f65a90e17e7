package schematest

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/schema"
)

type (
	placedV1 struct {
		Order string `json:"order"`
		Units int64  `json:"units"`
	}
	placedV2 struct {
		Order string `json:"order"`
		Cents int64  `json:"cents"`
	}
)

func toCents(e placedV1) (placedV2, error) {
	if e.Order == "" {
		return placedV2{}, schema.ErrDrop
	}
	return placedV2{Order: e.Order, Cents: 100 * e.Units}, nil
}

func TestRun(t *testing.T) {
	Run(t, schema.Then(schema.Begin[placedV1](), toCents), "testdata/placed")
}

// TestWhatRunFinds: each mistake has its error, and nothing else has one.
func TestWhatRunFinds(t *testing.T) {
	good := map[string]string{
		"001.json": `{"order":"o-1","units":3}`, "001.want.json": `{"cents":300, "order":"o-1"}`,
		"002.json": `{"order":"o-1","cents":9007199254740993}`, "002.want.json": `{"order":"o-1","cents":9007199254740993}`,
	}
	chain := schema.Then(schema.Begin[placedV1](), toCents)
	unsteady := schema.Then(schema.Begin[placedV1](), func(e placedV1) (placedV2, error) {
		return placedV2{Order: e.Order, Cents: rand.Int64()}, nil
	})
	for name, tc := range map[string]struct {
		chain  schema.Chain[placedV2]
		change map[string]string
		want   []string
	}{
		"all well":            {chain, nil, nil},
		"no payload":          {chain, map[string]string{"001.json": ""}, []string{"version 1 has no payload; add one as 001.json"}},
		"no want file":        {chain, map[string]string{"001.want.json": ""}, []string{"SCHEMATEST_UPDATE=1 writes it"}},
		"a version too many":  {chain, map[string]string{"003.json": "{}"}, []string{"version 3 is not in the chain, which has 1 to 2"}},
		"two of one version":  {chain, map[string]string{"1.json": "{}"}, []string{"1.json: 001.json has the same version"}},
		"another name":        {chain, map[string]string{"first.json": "{}"}, []string{"the name must be a version"}},
		"another result":      {chain, map[string]string{"001.want.json": `{"order":"o-1","cents":3}`}, []string{"the chain makes"}},
		"a large number":      {chain, map[string]string{"002.want.json": `{"order":"o-1","cents":9007199254740992}`}, []string{"the chain makes"}},
		"a lost field":        {chain, map[string]string{"001.json": `{"order":"o-1","units":3,"gift":true}`}, []string{`a field would be lost: json: unknown field "gift"`}},
		"an invented field":   {chain, map[string]string{"002.json": `{"order":"o-1"}`, "002.want.json": `{"order":"o-1","cents":0}`}, []string{"a field was lost or invented"}},
		"dropped":             {chain, map[string]string{"001.json": `{"units":3}`, "001.want.json": "dropped\n"}, nil},
		"dropped by mistake":  {chain, map[string]string{"001.json": `{"units":3}`}, []string{"the chain makes\ndropped\nof it"}},
		"not JSON":            {chain, map[string]string{"001.json": `{`}, []string{"SCHEMA_DECODE"}},
		"not a pure function": {unsteady, nil, []string{"two runs give two results", "the chain makes"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, files := t.TempDir(), maps.Clone(good)
			maps.Copy(files, tc.change)
			for file, text := range files {
				if text == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			payloads, wrong := find(dir, tc.chain.First(), tc.chain.Last())
			for _, version := range slices.Sorted(maps.Keys(payloads)) {
				wrong = append(wrong, check(tc.chain, version, filepath.Join(dir, payloads[version]), false)...)
			}
			if len(wrong) != len(tc.want) {
				t.Fatalf("%q, want %q", wrong, tc.want)
			}
			for i, err := range wrong {
				if !strings.Contains(err.Error(), tc.want[i]) {
					t.Errorf("%q, want %q", err, tc.want[i])
				}
			}
		})
	}
	if _, wrong := find(filepath.Join(t.TempDir(), "none"), 1, 1); len(wrong) != 1 {
		t.Errorf("a folder that is not there: %v", wrong)
	}
}

func TestUpdateWritesTheWantFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "001.json")
	if err := os.WriteFile(file, []byte(`{"order":"o-1","units":3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	chain := schema.Then(schema.Begin[placedV1](), toCents)
	for _, update := range []bool{true, false} {
		if wrong := check(chain, 1, file, update); len(wrong) > 0 {
			t.Errorf("update %v: %v", update, wrong)
		}
	}
}
