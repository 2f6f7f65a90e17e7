package redact

import (
	"net/url"
	"strings"
	"testing"
)

func TestPlace(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"postgres://u:p@h/db", "postgres://h/db"},
		{"postgres://u@h:5432/db?sslmode=disable", "postgres://h:5432/db"},
		{"postgres://h1,h2:5433/db?user=u&password=hunter2", "postgres://h1,h2:5433/db"},
		{"postgres://u:p@[::1]:5432/db", "postgres://[::1]:5432/db"},
		{"postgres://postgres:postgres@postgres/postgres", "postgres://postgres/postgres"},
		{"postgres://", "postgres://"},
		{"nats://s3cr3ttoken@h:4222", "nats://h:4222"},
		{"kafka://a:9092,b:9092", "kafka://a:9092,b:9092"},
		{"amqp://u:p@h/%2Fshop", "amqp://h/%2Fshop"},
		{"https://u:p@hooks.example.com/in/hunter2?token=x#secret-file=f", "https://hooks.example.com"},
		{"sqlite:/tmp/x.db?mode=ro", "sqlite:/tmp/x.db"},
		{"memory:", "memory:"},
		// It is open which part is the password.
		{"postgres://u:p/x@y?z@h/db", "postgres://..."},
		{"postgres://u:p@x@h/db", "postgres://..."},
		{"postgres://u:hun?ter2@h/db", "postgres://..."},
		{"postgres://h/db?password=a@b", "postgres://..."},
		{"postgres://u:hunter2", "postgres://..."},
		{"https://h#in@side", "https://..."},
		{"host=h password=hunter2 user=u", "(30 characters, not shown)"},
		{"hunter2@h://x", "..."},
	} {
		if got := Place(tc.in); got != tc.want {
			t.Errorf("Place(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestWord(t *testing.T) {
	for in, want := range map[string]string{
		"frob": `"frob"`, "127.0.0.1:9464": `"127.0.0.1:9464"`, "": `""`,
		"postgres://u:p@h": "(16 characters, not shown)", "password=x": "(10 characters, not shown)", "u:p@h": "(5 characters, not shown)",
		strings.Repeat("é", 81): "(81 characters, not shown)",
	} {
		if got := Word(in); got != want || Shown(in) != (got[0] == '"') {
			t.Errorf("Word(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestOneLineSaysNothingTwice(t *testing.T) {
	const in = "failed to connect to `user=u`:\n\t127.0.0.1:1: refused\n\t127.0.0.1:1: refused\n\n\t[::1]:1:  refused"
	const want = "failed to connect to `user=u`: 127.0.0.1:1: refused; [::1]:1: refused"
	if got := OneLine(in); got != want {
		t.Errorf("OneLine = %q, want %q", got, want)
	}
}

// What Place returns does not depend on the password, escaped or not.
func FuzzPlaceKnowsNoPassword(f *testing.F) {
	for _, p := range []string{"hunter2", "p@ss:w/rd?#", "%zz%", "with space", `q"uo\te`, "ünïcode", "h", "postgres", "5432"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, password string) {
		const want = "postgres://host.example:5432/db"
		escaped := "postgres://user:" + url.QueryEscape(password) + "@host.example:5432/db?sslmode=verify-full"
		if got := Place(escaped); got != want {
			t.Errorf("Place(%q) = %q, want %q", escaped, got, want)
		}
		raw := "postgres://user:" + password + "@host.example:5432/db?sslmode=verify-full"
		if got := Place(raw); got != want && got != "postgres://..." {
			t.Errorf("Place(%q) = %q", raw, got)
		}
	})
}
