package brokerurl_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/broker/internal/brokerurl"
	"github.com/postrider/postrider/internal/testserver"
)

func spec() brokerurl.Spec {
	return brokerurl.Spec{
		Schemes: map[string]bool{"q": false, "qs": true}, Port: "77",
		Params: []string{"prefix"}, Secrets: []string{"token"},
	}
}

func TestParse(t *testing.T) {
	u, err := brokerurl.Parse("q://us%40er:p%20w@a:1,b,[::1]/?prefix=x.", spec())
	if err != nil {
		t.Fatal(err)
	}
	password, err := u.Password(t.Context())
	if err != nil || password != "p w" || u.User != "us@er" || u.Param("prefix") != "x." || u.TLS != nil {
		t.Errorf("%+v, password %q, %v", u, password, err)
	}
	if want := []string{"a:1", "b:77", "[::1]:77"}; !slices.Equal(u.Hosts, want) {
		t.Errorf("hosts %q, want %q", u.Hosts, want)
	}
	for raw, tls := range map[string]bool{"q://a": false, "q://a?tls=false": false, "q://a?tls=true": true, "qs://a": true, "q://a?tls-server-name=b": true} {
		if u, err := brokerurl.Parse(raw, spec()); err != nil || (u.TLS != nil) != tls {
			t.Errorf("%s: TLS is %v, want %v, %v", raw, u.TLS, tls, err)
		}
	}
}

// TestBothSpellings: a parameter's name may have underscores, and is still one parameter.
func TestBothSpellings(t *testing.T) {
	u, err := brokerurl.Parse("q://a?tls_server_name=b", spec())
	if err != nil || u.TLS == nil || u.TLS.ServerName != "b" {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := brokerurl.Parse("q://a?tls_server_name=b&tls-server-name=c", spec()); err == nil || !strings.Contains(err.Error(), "given 2 times") {
		t.Errorf("two spellings of one parameter: %v", err)
	}
}

// TestSecretsFromFiles: a file's new content is used without another Parse.
func TestSecretsFromFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "p")
	t.Setenv("POSTRIDER_TEST_TOKEN", "tok")
	var u *brokerurl.URL
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(name, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if u == nil {
			var err error
			if u, err = brokerurl.Parse("q://me@a?password-file="+name+"&token-env=POSTRIDER_TEST_TOKEN", spec()); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := u.Password(t.Context()); got != want || err != nil {
			t.Errorf("password %q, %v, want %q", got, err, want)
		}
	}
	if got, err := u.Secret("token")(t.Context()); got != "tok" || err != nil {
		t.Errorf("token %q, %v", got, err)
	}
}

// TestRefused: what is wrong is said, and nothing of the URL is repeated but the
// names of parameters and files.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	empty, other := filepath.Join(dir, "empty"), filepath.Join(dir, "other")
	for _, name := range []string{empty, other} {
		if err := os.WriteFile(name, []byte("\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for raw, want := range map[string]string{
		"hunter2":                                       "must begin with q:// or qs://",
		"z://u:hunter2@a":                               "must begin with q:// or qs://",
		"q://u:hunter2@":                                "a host is missing",
		"q://u:hunter2@a,,b":                            "a host is missing",
		"q://u:hunter2@a/hunter2":                       "only parameters may follow the hosts",
		"q://u:hunter2%zz@a":                            "percent-encoded",
		"q://a?x=%zz":                                   "percent-encoded",
		"q://a?pasword=hunter2":                         `"pasword" is unknown: use password-env, password-file, prefix`,
		"q://u:p?hunter2@a":                             "percent-encode user and password",
		"q://u:p?hunter2&x@a?tls=true":                  "percent-encode user and password",
		"q://a?prefix=a&prefix=b":                       "prefix is given 2 times",
		"q://a?tls=yes":                                 "tls must be true or false",
		"qs://a?tls=false":                              "asks for TLS",
		"q://a?tls=false&tls-ca=" + empty:               "asks for TLS",
		"q://a?tls-ca=" + empty:                         "no certificate in PEM",
		"q://a?tls-ca=" + dir + "/not":                  "no such file",
		"q://a?tls-cert=" + empty:                       "belong together",
		"q://a?tls-cert=" + empty + "&tls-key=" + other: "tls-cert and tls-key",
		"q://a?password-file=" + empty:                  "want one line",
		"q://a?password-file=" + dir + "/not":           "no such file",
		"q://a?password-file=":                          "password-file is empty",
		"q://a?password-env=POSTRIDER_TEST_NOT":         "environment has no POSTRIDER_TEST_NOT",
		"q://a?password-env=POSTRIDER_TEST_NOT&password-file=" + dir: "exclude each other",
	} {
		_, err := brokerurl.Parse(raw, spec())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v, want %q", raw, err, want)
		}
	}
	t.Setenv("POSTRIDER_TEST_P", "x")
	if _, err := brokerurl.Parse("q://u:hunter2@a?password-env=POSTRIDER_TEST_P", spec()); err == nil || !strings.Contains(err.Error(), "give one of them") {
		t.Errorf("two passwords: %v", err)
	}
}

// TestCertificatesRotate: each connection shows and trusts what the files hold then.
func TestCertificatesRotate(t *testing.T) {
	dir := t.TempDir()
	ca, err := testserver.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.IssueFiles(dir, "me")
	if err != nil {
		t.Fatal(err)
	}
	u, err := brokerurl.Parse("q://a?tls-ca="+ca.File+"&tls-cert="+cert+"&tls-key="+key, spec())
	if err != nil {
		t.Fatal(err)
	}
	first, err := u.TLS.Config()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := ca.IssueFiles(dir, "me"); err != nil {
		t.Fatal(err)
	}
	second, err := u.TLS.Config()
	if err != nil {
		t.Fatal(err)
	}
	if string(first.Certificates[0].Certificate[0]) == string(second.Certificates[0].Certificate[0]) {
		t.Error("the second connection shows the first one's certificate")
	}
	if err := os.Remove(ca.File); err != nil {
		t.Fatal(err)
	}
	if _, err := u.TLS.Config(); err == nil || !strings.Contains(err.Error(), "tls-ca") {
		t.Errorf("without its authorities: %v", err)
	}
}
