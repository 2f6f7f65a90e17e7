package redact

import (
	"net/url"
	"strings"
	"testing"
)

func TestURLMasksPasswords(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"postgres://u:p@h/db", "postgres://u:***@h/db"},
		{"postgres://u:p/x@y?z@h/db", "postgres://u:***@h/db"},
		{"postgres://u@h/db", "postgres://u@h/db"},
		{"postgres://h/db?user=u&password=hunter2&sslmode=require", "postgres://h/db?user=u&password=***&sslmode=require"},
		{"host=h password=hunter2 user=u", "host=h password=*** user=u"},
		{"host=h password='a b' user=u", "host=h password=*** user=u"},
		{"nats://s3cr3ttoken@h:4222", "nats://***@h:4222"},
		{"kafka://a:9092,b:9092", "kafka://a:9092,b:9092"},
		{"sqlite:/tmp/x.db", "sqlite:/tmp/x.db"},
	} {
		if got := URL(tc.in); got != tc.want {
			t.Errorf("URL(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestTextSaysNothingTwice(t *testing.T) {
	const in = "failed to connect to `user=u`:\n\t127.0.0.1:1: refused\n\t127.0.0.1:1: refused\n\n\t[::1]:1:  refused"
	const want = "failed to connect to `user=u`: 127.0.0.1:1: refused; [::1]:1: refused"
	if got := (Secrets{}).Text(in); got != want {
		t.Errorf("Text = %q, want %q", got, want)
	}
}

// A user's name is no secret: masking it would mask "postgres" in every line.
func TestNamesAreNoSecrets(t *testing.T) {
	const text = "store postgres: postgres://postgres@h/db"
	if got := Find("postgres://postgres@h/db").Text(text); got != text {
		t.Errorf("Text = %q, want it as it was", got)
	}
	if got := Find("nats://s3cr3ttoken@h").Text("auth s3cr3ttoken at nats://s3cr3ttoken@h"); strings.Contains(got, "s3cr3t") {
		t.Errorf("Text = %q: holds the token", got)
	}
}

// url.Parse quotes the URL it cannot parse, password included.
func TestTextMasksWhatParseErrorsQuote(t *testing.T) {
	raw := strings.Join([]string{"postgres://u:hunt%er2@h", "port/db"}, ":")
	_, err := url.Parse(raw)
	if err == nil || !strings.Contains(err.Error(), "hunt") {
		t.Fatalf("url.Parse(%q) = %v: the trap this test is about is gone", raw, err)
	}
	got := Find(raw).Text(err.Error())
	if strings.Contains(got, "hunt") {
		t.Errorf("Text = %q: holds the password", got)
	}
}

func FuzzSecretsNeverLeave(f *testing.F) {
	for _, p := range []string{"hunter2", "p@ss:w/rd?#", "%zz%", "with space", `q"uo\te`, "ünïcode"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, password string) {
		// Short secrets and those made of the mask or of the URL's own text cannot be told apart.
		if len(password) < 6 || strings.Contains("postgres://user:"+Mask+"@host.example:5432/db?sslmode=verify-full", password) {
			return
		}
		raw := "postgres://user:" + password + "@host.example:5432/db?sslmode=verify-full"
		if got := URL(raw); strings.Contains(got, password) {
			t.Errorf("URL(%q) = %q", raw, got)
		}
		secrets := Find(raw)
		if _, err := url.Parse(raw); err != nil {
			if got := secrets.Text(err.Error()); strings.Contains(got, password) {
				t.Errorf("Text(%q) = %q", err, got)
			}
		}
		if got := secrets.Text("password authentication failed: " + password); strings.Contains(got, password) {
			t.Errorf("Text = %q", got)
		}
	})
}
