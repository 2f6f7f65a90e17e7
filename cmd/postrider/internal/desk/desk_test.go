package desk

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/console"
)

func newDesk(t *testing.T, set Settings) *Desk {
	t.Helper()
	if set.Listen == "" {
		set.Listen = "127.0.0.1:0"
	}
	if set.Role == "" {
		set.Role = "operator"
	}
	set.Actor, set.Logger = "owner", slog.New(slog.DiscardHandler)
	d, err := New(set)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Without authentication only names of this machine lead to the console: another name that
// resolves to it belongs to a page elsewhere.
func TestLoopbackNames(t *testing.T) {
	d := newDesk(t, Settings{})
	for host, want := range map[string]bool{
		"127.0.0.1:9465": true, "localhost:9465": true, "[::1]:9465": true, "localhost": true, "evil.example:9465": false, "10.0.0.1:9465": false, "": false,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		u, err := d.authenticate(r)
		if (err == nil) != want || want && (u.Name != "owner" || u.Role != console.Operator) {
			t.Errorf("host %q: user %+v, %v", host, u, err)
		}
	}
}

// A token signs its holder in until it expires or its line is removed.
func TestTokens(t *testing.T) {
	token, line := NewToken("ann", console.Operator, time.Time{})
	old, oldLine := NewToken("bob", console.Admin, time.Now().Add(-time.Minute))
	name := file(t, "# people\n"+line+"\n"+oldLine+"\n")
	if strings.Contains(line, token) {
		t.Error("the line holds the token")
	}
	d := newDesk(t, Settings{Tokens: name})
	if o := d.Options(); o.Logout != "/logout" {
		t.Errorf("pages sign out at %q", o.Logout)
	}
	signIn := func(token string) (int, []*http.Cookie) {
		r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(url.Values{"token": {token}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		d.login(w, r)
		return w.Code, w.Result().Cookies()
	}
	as := func(cookies []*http.Cookie, bearer string) (console.User, error) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		for _, c := range cookies {
			r.AddCookie(c)
		}
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
		}
		return d.authenticate(r)
	}
	for _, bad := range []string{"", "prc_wrong", old, line, hashOf(token)} {
		if status, cookies := signIn(bad); status != http.StatusUnauthorized || len(cookies) > 0 {
			t.Errorf("token %q: status %d, cookies %v", bad, status, cookies)
		}
		if _, err := as(nil, bad); err == nil {
			t.Errorf("bearer %q is accepted", bad)
		}
	}
	status, cookies := signIn(token)
	if status != http.StatusSeeOther || len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode {
		t.Fatalf("status %d, cookies %v", status, cookies)
	}
	for _, bearer := range []string{"", token} {
		if u, err := as(cookies, bearer); err != nil || u.Name != "ann" || u.Role != console.Operator {
			t.Errorf("user %+v, %v", u, err)
		}
	}
	forged := *cookies[0]
	forged.Value = hashOf(old) + forged.Value[64:]
	if _, err := as([]*http.Cookie{&forged}, ""); err == nil {
		t.Error("a cookie with another hash is accepted")
	}
	longer := *cookies[0]
	parts := strings.Split(longer.Value, ".")
	longer.Value = parts[0] + ".99999999999." + parts[2]
	if _, err := as([]*http.Cookie{&longer}, ""); err == nil {
		t.Error("a cookie with another end is accepted")
	}
	if err := os.WriteFile(name, []byte("# nobody\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := as(cookies, ""); err == nil {
		t.Error("the session outlives the line of its token")
	}
}

// The login of another site's page is not taken.
func TestLoginFromElsewhere(t *testing.T) {
	token, line := NewToken("ann", console.Operator, time.Time{})
	d := newDesk(t, Settings{Tokens: file(t, line)})
	r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(url.Values{"token": {token}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	if d.login(w, r); w.Code != http.StatusForbidden {
		t.Errorf("status %d", w.Code)
	}
}

// The headers of the proxy count only when they come from its network with its secret.
func TestProxy(t *testing.T) {
	const secret = "0123456789abcdef"
	d := newDesk(t, Settings{
		Listen: ":0", Proxies: []string{"10.0.0.0/24"}, ProxySecretFile: file(t, secret+"\n"),
		ProxyUserHeader: "X-Forwarded-User", ProxyGroupHeader: "X-Forwarded-Groups", ProxyRoles: []string{"*=viewer", "oncall=operator"},
	})
	for name, c := range map[string]struct {
		from, secret, user, groups string
		role                       console.Role
	}{
		"everybody":         {"10.0.0.9:1", secret, "ann", "", console.Viewer},
		"on call":           {"10.0.0.9:1", secret, "ann", "dev, oncall", console.Operator},
		"mapped address":    {"[::ffff:10.0.0.9]:1", secret, "ann", "", console.Viewer},
		"another network":   {"10.0.1.9:1", secret, "ann", "oncall", ""},
		"another secret":    {"10.0.0.9:1", "x", "ann", "oncall", ""},
		"no secret":         {"10.0.0.9:1", "", "ann", "oncall", ""},
		"nobody":            {"10.0.0.9:1", secret, " ", "oncall", ""},
		"a socket's sender": {"@", secret, "ann", "oncall", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.from
		r.Header.Set(secretHeader, c.secret)
		r.Header.Set("X-Forwarded-User", c.user)
		r.Header.Set("X-Forwarded-Groups", c.groups)
		u, err := d.authenticate(r)
		if u.Role != c.role || (err == nil) != (c.role != "") {
			t.Errorf("%s: user %+v, %v", name, u, err)
		}
		r.Header.Add("X-Forwarded-Groups", "oncall")
		if u, err := d.authenticate(r); err == nil {
			t.Errorf("%s: two headers of groups are taken for %+v", name, u)
		}
		r.Header.Del("X-Forwarded-Groups")
		if r.Header.Add("X-Forwarded-User", "root"); c.role != "" {
			if u, err := d.authenticate(r); err == nil {
				t.Errorf("%s: two users are taken for %+v", name, u)
			}
		}
	}
}

// A payload of a store without a journal is not shown where the log would not tell who has read it.
func TestReadsAreLogged(t *testing.T) {
	for level, want := range map[slog.Level]bool{slog.LevelDebug: true, slog.LevelInfo: true, slog.LevelWarn: false, slog.LevelError: false} {
		d := newDesk(t, Settings{})
		d.set.Logger = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: level})) //nolint:sloglint // its level is asked
		o := d.Options()
		err := o.NoteRead(t.Context(), console.Read{})
		if (err == nil) != want || !want && !strings.Contains(err.Error(), "--log-level info") {
			t.Errorf("level %s: %v", level, err)
		}
	}
}

// A file of tokens with a mistake lets nobody in, and what is in it is told to the log alone.
func TestBrokenTokens(t *testing.T) {
	token, line := NewToken("ann", console.Operator, time.Time{})
	fields := strings.Fields(line)
	fields[2] = strings.ToUpper(fields[2])
	name := file(t, strings.Join(fields, " "))
	var log strings.Builder
	d := newDesk(t, Settings{Tokens: name})
	d.tokens.logger = slog.New(slog.NewTextHandler(&log, nil))
	signIn := func() error {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		_, err := d.authenticate(r)
		return err
	}
	if err := signIn(); err != nil {
		t.Errorf("a hash in upper case: %v", err)
	}
	if err := os.WriteFile(name, []byte("ann prc_SECRET "+fields[2]+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := signIn(); err == nil || err.Error() != errNobody.Error() {
		t.Errorf("a broken line: %v", err)
	}
	if !strings.Contains(log.String(), "line 1: the role must be") || strings.Contains(log.String(), "SECRET") {
		t.Errorf("the log is %s", log.String())
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := signIn(); err == nil || strings.Contains(err.Error(), name) || !strings.Contains(log.String(), name) {
		t.Errorf("no file: %v; the log is %s", err, log.String())
	}
}

// TestRenewedCertificate: browsers get the certificate that the files hold, without a restart.
// Files that are half written leave the one before in use.
func TestRenewedCertificate(t *testing.T) {
	cert, key := file(t, ""), file(t, "")
	renew(t, cert, key, 1)
	d := newDesk(t, Settings{TLSCert: cert, TLSKey: key})
	at, err := d.Start(http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	shown := func() int64 {
		t.Helper()
		c, err := tls.Dial("tcp", strings.Trim(strings.TrimPrefix(at, "https:"), "/"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if n := shown(); n != 1 {
		t.Errorf("certificate %d is shown, want 1", n)
	}
	renew(t, cert, key, 2)
	if n := shown(); n != 2 {
		t.Errorf("certificate %d is shown after the renewal, want 2", n)
	}
	if err := os.WriteFile(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := shown(); n != 2 {
		t.Errorf("certificate %d is shown while the key is missing, want 2", n)
	}
}

// renew writes a new key and its certificate.
func renew(t *testing.T, cert, key string, serial int64) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"localhost"}}
	signed, err := x509.CreateCertificate(rand.Reader, of, of, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
