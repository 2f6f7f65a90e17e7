package config

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func settings(t *testing.T) (*pflag.FlagSet, *string, *time.Duration) {
	t.Helper()
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	store := fs.String("store", "default", "")
	ttl := fs.Duration("lease-ttl", time.Second, "")
	fs.Int("limit", 0, "")
	fs.Int("page", 0, "")
	if err := Mark(fs, "store", "lease-ttl", "page"); err != nil {
		t.Fatal(err)
	}
	return fs, store, ttl
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "p.yml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestPrecedence(t *testing.T) {
	yml := "store: from-file\n"
	for _, tc := range []struct {
		name, file, env, flag, want string
	}{
		{"default", "", "", "", "default"},
		{"file", yml, "", "", "from-file"},
		{"env over file", yml, "from-env", "", "from-env"},
		{"flag over env", yml, "from-env", "from-flag", "from-flag"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs, store, _ := settings(t)
			if tc.flag != "" {
				if err := fs.Parse([]string{"--store", tc.flag}); err != nil {
					t.Fatal(err)
				}
			}
			src := Source{File: file(t, tc.file), Known: []string{"store", "lease-ttl"}, LookupEnv: func(k string) (string, bool) {
				return tc.env, k == "POSTRIDER_STORE" && tc.env != ""
			}}
			if err := src.Apply(fs); err != nil {
				t.Fatal(err)
			}
			if *store != tc.want {
				t.Errorf("store = %q, want %q", *store, tc.want)
			}
		})
	}
}

func TestErrorsNameThePlace(t *testing.T) {
	for _, tc := range []struct{ name, yml, want string }{
		{"unknown key", "store: x\n\n  \nleese_ttl: 3s\n", `:4:1: unknown setting "leese_ttl": did you mean "lease_ttl"?`},
		{"unlike any key", "frobnicate: 1\n", ":1:1: unknown setting \"frobnicate\": `postrider relay --help` lists them"},
		{"value", "lease_ttl: soon\n", `:1:12: lease_ttl: "soon" cannot be used: time: invalid duration "soon"`},
		{"number", "page: many\n", `:1:7: page: "many" cannot be used: it is not a number`},
		{"twice", "store: a\nstore: b\n", ":2:1: store is set twice"},
		{"nested", "store:\n  url: x\n", ":2:3: store must be a single value"},
		{"list", "- a\n", ":1:1: must be a list of `setting: value` lines"},
		{"syntax", "store: \"a\nlisten: b: c\n", ":3:1: not valid YAML: found unexpected end of stream; a quotation mark or bracket is not closed"},
		{"colon", "store: memory:\n", `:1:14: not valid YAML: mapping values are not allowed in this context; quote a value with a colon in it, such as "stdout:", and begin settings without spaces`},
		{"tab", "store: x\n\tpage: 1\n", ":2:1: not valid YAML: found a tab character that violates indentation; use spaces"},
		{"sign", "store: @x\n", ":1:8: not valid YAML: found character that cannot start any token; quote a value that begins with a sign such as %, @ or `, and indent with spaces"},
		{"not a setting", "limit: 3\n", ":1:1: unknown setting \"limit\": `postrider relay --help` lists them"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs, _, _ := settings(t)
			src := Source{File: file(t, tc.yml), Known: []string{"store", "lease-ttl", "page"}, LookupEnv: func(string) (string, bool) { return "", false }}
			err := src.Apply(fs)
			if err == nil || err.Error() != src.File+tc.want {
				t.Errorf("error = %v, want %s%s", err, src.File, tc.want)
			}
		})
	}
}

// Names may have dashes or underscores, in every part of a file.
func TestBothSpellings(t *testing.T) {
	for _, yml := range []string{"lease_ttl: 3s\n", "lease-ttl: 3s\n"} {
		fs, _, ttl := settings(t)
		src := Source{File: file(t, yml), Known: []string{"store", "lease-ttl"}, LookupEnv: func(string) (string, bool) { return "", false }}
		if err := src.Apply(fs); err != nil || *ttl != 3*time.Second {
			t.Errorf("%q: %v, %v", yml, *ttl, err)
		}
	}
	own := []string{"store", "lease-ttl"}
	src := Source{File: file(t, "relays:\n  - name: a\n    lease-ttl: 3s\n    routes:\n      - {topic: x, event-type: y}\n"), Known: own, Own: own}
	relays, err := src.Relays()
	if err != nil || relays[0].Value("lease-ttl") != "3s" || relays[0].Routes[0].Type != "y" {
		t.Errorf("%+v, %v", relays, err)
	}
	src = Source{File: file(t, "lease-ttl: 3s\nlease_ttl: 4s\n"), Known: own}
	if _, err := src.Relays(); err == nil || err.Error() != src.File+":2:1: lease_ttl is set twice" {
		t.Errorf("two spellings of one setting: %v", err)
	}
}

func TestEnvironmentErrorNamesTheVariable(t *testing.T) {
	fs, _, _ := settings(t)
	src := Source{LookupEnv: func(k string) (string, bool) { return "soon", k == "POSTRIDER_LEASE_TTL" }}
	err := src.Apply(fs)
	want := `environment POSTRIDER_LEASE_TTL: "soon" cannot be used: time: invalid duration "soon"`
	if err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

func TestNamedFileMustExist(t *testing.T) {
	fs, _, _ := settings(t)
	src := Source{File: "/nowhere/p.yml", LookupEnv: func(string) (string, bool) { return "", false }}
	err := src.Apply(fs)
	if err == nil || err.Error() != "/nowhere/p.yml: cannot be read: no such file or directory" {
		t.Errorf("error = %v", err)
	}
}

func TestRelays(t *testing.T) {
	own := []string{"store", "lease-ttl", "page"}
	src := func(yml string) Source {
		return Source{File: file(t, yml), Known: []string{"store", "lease-ttl", "page", "listen"}, Own: own, LookupEnv: func(string) (string, bool) { return "", false }}
	}
	for _, tc := range []struct{ name, yml, want string }{
		{"no list", "relays: x\n", ":1:9: relays must be a list of entries that begin with `- name: NAME`"},
		{"empty list", "relays: []\n", ":1:9: relays must be a list of entries that begin with `- name: NAME`"},
		{"no entry", "relays:\n  - shop\n", ":2:5: an entry of relays begins with `- name: NAME`, and its settings follow"},
		{"no name", "relays:\n  - store: x\n", `:2:5: the name of a relay is "": use letters, digits, dots, dashes and underscores, at most 63`},
		{"bad name", "relays:\n  - name: a b\n", `:2:5: the name of a relay is "a b": use letters, digits, dots, dashes and underscores, at most 63`},
		{"two of a name", "relays:\n  - name: a\n  - name: a\n", `:3:5: there are two relays "a"`},
		{"unknown", "relays:\n  - stor: x\n    name: a\n", `:2:5: relay a: unknown setting "stor": did you mean "store"?`},
		{"of the process", "relays:\n  - name: a\n    listen: x\n", ":3:5: relay a: listen is one for the whole process: set it outside of the list"},
		{"nested", "relays:\n  - name: a\n    store: [x]\n", ":3:12: relay a: store must be a single value"},
		{"twice", "relays:\n  - name: a\nrelays:\n  - name: b\n", ":3:1: relays is set twice"},
		{"value", "relays:\n  - name: a\n    lease_ttl: soon\n", `:3:16: relay a: lease_ttl: "soon" cannot be used: time: invalid duration "soon"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := src(tc.yml)
			relays, err := s.Relays()
			if err == nil {
				fs, _, _ := settings(t)
				err = relays[0].Apply(fs)
			}
			if err == nil || err.Error() != s.File+tc.want {
				t.Errorf("error = %v, want %s%s", err, s.File, tc.want)
			}
		})
	}
	s := src("store: all\nrelays:\n  - name: a\n    store: one\n    page: 7\n  - name: b\n")
	relays, err := s.Relays()
	if err != nil || len(relays) != 2 || relays[0].Name != "a" || relays[1].Value("store") != "" || relays[0].Value("page") != "7" {
		t.Fatalf("relays %+v, %v", relays, err)
	}
	fs, store, _ := settings(t)
	if err := fs.Parse([]string{"--page", "9"}); err != nil {
		t.Fatal(err)
	}
	if err := relays[0].Apply(fs); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(fs); err != nil {
		t.Fatal(err)
	}
	if page, _ := fs.GetInt("page"); *store != "one" || page != 9 {
		t.Errorf("store %q, page %d: a flag wins over an entry, an entry over the rest", *store, page)
	}
}
