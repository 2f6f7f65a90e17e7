package proto_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
	"github.com/postrider/postrider/schema/proto"
)

// ours are the rules that buf does not have, or not in its category WIRE_JSON: see ADR 85.
var ours = []string{"PAYLOAD_NO_DELETE", "FIELD_SAME_VALUES", "FIELD_SAME_UTF8", "ENUM_VALUE_KNOWN", "ENUM_SAME_TYPE"}

func version(n int32, text string) *evolve.Version {
	return &evolve.Version{File: schema.File{Subject: "s", Version: n, Format: schema.Protobuf, Path: fmt.Sprintf("s/%03d.proto", n), Text: []byte(text)}}
}

// rules are the rules that a change breaks in one direction or the other, without ours.
func rules(o *proto.Options, before, now string) ([]string, error) {
	a, b := version(1, before), version(2, now)
	broken := map[string]bool{}
	for _, dir := range [][2]*evolve.Version{{a, b}, {b, a}} {
		found, err := proto.Language(o).Reads(dir[0], dir[1])
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if !slices.Contains(ours, f.Rule) {
				broken[f.Rule] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(broken)), nil
}

// TestAgainstBuf compares 5,000 generated pairs, rule by rule, with the verdicts of
// `buf breaking`, for binary payloads and for those that may be JSON.
func TestAgainstBuf(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") == "" {
		t.Skip("compared with buf in the matrix only: POSTRIDER_MATRIX=1")
	}
	buf, err := testserver.Buf()
	if err != nil {
		testserver.GiveUp(t, err)
	}
	dir := t.TempDir()
	type texts struct {
		before, now string
		json        []string // the rules that it breaks where payloads may be JSON
	}
	pairs := map[string]texts{}
	for seed := uint64(0); len(pairs) < 5000; seed++ {
		pkg := fmt.Sprintf("p%d", seed)
		before, now := pair(seed, pkg)
		x := texts{before: before.text(), now: now.text()}
		var err error
		if x.json, err = rules(nil, x.before, x.now); err != nil {
			continue // not a schema
		}
		pairs[pkg+".proto"] = x
		for side, text := range map[string]string{"before": x.before, "now": x.now} {
			name := filepath.Join(dir, side, pkg+".proto")
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, category := range []string{"WIRE_JSON", "WIRE"} {
		theirs := verdicts(t, buf, dir, category)
		count := map[string]int{}
		for name, x := range pairs {
			got := x.json
			if category == "WIRE" {
				if got, err = rules(&proto.Options{Binary: true}, x.before, x.now); err != nil {
					t.Fatal(err)
				}
			}
			want := slices.Sorted(maps.Keys(theirs[name]))
			for _, r := range want {
				count[r]++
			}
			if len(want) == 0 {
				count["compatible"]++
			}
			if !slices.Equal(got, want) {
				if count["differences"]++; count["differences"] < 6 {
					t.Errorf("%s %s: buf says %v, we say %v\n%s\n--- now\n%s", category, name, want, got, x.before, x.now)
				}
			}
		}
		t.Logf("%s: %v", category, count)
		if count["compatible"] < 500 || len(count) < 10 {
			t.Errorf("%s: the pairs prove little", category)
		}
	}
}

// verdicts are the rules that buf finds broken, by file.
func verdicts(t *testing.T, buf, dir, category string) map[string]map[string]bool {
	t.Helper()
	config := fmt.Sprintf(`{"version":"v2","breaking":{"use":[%q]}}`, category)
	cmd := exec.Command(buf, "breaking", filepath.Join(dir, "now"), "--against", filepath.Join(dir, "before"), "--config", config, "--against-config", config, "--error-format", "json")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CACHE_HOME="+dir, "BUF_CACHE_DIR="+dir)
	var said strings.Builder
	cmd.Stderr = &said
	out, _ := cmd.Output() // it fails when it finds something
	if len(out) == 0 {
		t.Fatalf("buf found nothing: %s", said.String())
	}
	all := map[string]map[string]bool{}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var one struct{ Path, Type string }
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		name := filepath.Base(one.Path)
		if all[name] == nil {
			all[name] = map[string]bool{}
		}
		all[name][one.Type] = true
	}
	return all
}
