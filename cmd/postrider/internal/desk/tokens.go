package desk

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/console"
)

// tokenPrefix lets scanners of code and logs find a token.
const tokenPrefix = "prc_"

// NewToken returns a new token and its line for the file of tokens. The line has the token's
// hash, not the token.
func NewToken(name string, role console.Role, expires time.Time) (token, line string) {
	token = tokenPrefix + rand.Text()
	line = name + " " + string(role) + " " + hashOf(token)
	if !expires.IsZero() {
		line += " " + expires.UTC().Format(time.RFC3339)
	}
	return token, line
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// holder is a line of the file: who has the token of a hash.
type holder struct {
	console.User
	hash    string
	expires time.Time // zero: never
}

// tokens are the lines of a file. It is read again when it changes, so that a line that is removed
// ends the sessions of its token.
type tokens struct {
	file   string
	secret []byte // of the cookies
	logger *slog.Logger
	mu     sync.Mutex
	read   time.Time // the file's time of change
	size   int64
	all    []holder
}

func openTokens(file string, logger *slog.Logger) (*tokens, error) {
	t := &tokens{file: file, logger: logger, secret: []byte(rand.Text())}
	all, err := t.holders()
	if err != nil {
		return nil, exit.Usagef("%v", err)
	}
	if len(all) == 0 {
		return nil, exit.Usagef("tokens: the file has no token: add the line that `postrider console token NAME` prints")
	}
	return t, nil
}

func (t *tokens) holders() ([]holder, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	info, err := os.Stat(t.file)
	if err != nil {
		return nil, fmt.Errorf("tokens: the file cannot be read: %w", err)
	}
	if info.ModTime().Equal(t.read) && info.Size() == t.size {
		return t.all, nil
	}
	data, err := os.ReadFile(t.file)
	if err != nil {
		return nil, fmt.Errorf("tokens: the file cannot be read: %w", err)
	}
	var all []holder
	for i, line := range strings.Split(string(data), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		h, err := parseHolder(line)
		if err != nil {
			return nil, fmt.Errorf("tokens: line %d: %w", i+1, err)
		}
		all = append(all, h)
	}
	t.all, t.read, t.size = all, info.ModTime(), info.Size()
	return all, nil
}

func parseHolder(line string) (h holder, err error) {
	fields := strings.Fields(line)
	if len(fields) != 3 && len(fields) != 4 {
		return h, errors.New("write NAME ROLE HASH, and a time such as 2026-12-31T00:00:00Z when it expires")
	}
	h.Name, h.hash = fields[0], strings.ToLower(fields[2])
	if h.Role, err = console.ParseRole(fields[1]); err != nil {
		return h, errors.New("the role must be viewer, payload, operator or admin") // the word may be a token
	}
	if raw, err := hex.DecodeString(h.hash); err != nil || len(raw) != sha256.Size {
		return h, errors.New("the hash must be the SHA-256 of the token in hexadecimal")
	}
	if len(fields) == 4 {
		if h.expires, err = time.Parse(time.RFC3339, fields[3]); err != nil {
			return h, errors.New("the time of expiry must be such as 2026-12-31T00:00:00Z")
		}
	}
	return h, nil
}

var (
	errToken  = errors.New("the token is unknown or expired")
	errNobody = errors.New("signing in is off: the tokens file is invalid; see the log of the console")
)

// holder finds who has a hash now. It compares with every line, so that its time tells nothing.
func (t *tokens) holder(hash string) (found holder, err error) {
	all, err := t.holders()
	if err != nil { // its text is for those who keep the file
		t.logger.Error("tokens file refused", "error", err)
		return found, errNobody
	}
	err = errToken
	for _, h := range all {
		if subtle.ConstantTimeCompare([]byte(h.hash), []byte(hash)) == 1 && (h.expires.IsZero() || time.Now().Before(h.expires)) {
			found, err = h, nil
		}
	}
	return found, err
}

// session is how long a browser stays signed in.
const session = 12 * time.Hour

func (t *tokens) cookie(hash string, until time.Time) string {
	text := hash + "." + strconv.FormatInt(until.Unix(), 10)
	mac := hmac.New(sha256.New, t.secret)
	mac.Write([]byte(text))
	return text + "." + hex.EncodeToString(mac.Sum(nil))
}

func cookieName(secure bool) string {
	if secure {
		return "__Host-postrider-session"
	}
	return "postrider-session"
}

// user is who has the token of the request: in a cookie, or as a bearer for programs.
func (t *tokens) user(r *http.Request, secure bool) (console.User, error) {
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		h, err := t.holder(hashOf(bearer))
		return h.User, err
	}
	c, err := r.Cookie(cookieName(secure))
	if err != nil {
		return console.User{}, errors.New("sign in with a token")
	}
	hash, rest, _ := strings.Cut(c.Value, ".")
	unix, _, _ := strings.Cut(rest, ".")
	seconds, err := strconv.ParseInt(unix, 10, 64)
	until := time.Unix(seconds, 0)
	if err != nil || !hmac.Equal([]byte(c.Value), []byte(t.cookie(hash, until))) || time.Now().After(until) {
		return console.User{}, errors.New("the session has ended: sign in again")
	}
	h, err := t.holder(hash)
	return h.User, err
}

// login exchanges a token for a cookie.
func (d *Desk) login(w http.ResponseWriter, r *http.Request) {
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		http.Error(w, "the form comes from another site", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	hash := hashOf(strings.TrimSpace(r.PostFormValue("token")))
	h, err := d.tokens.holder(hash)
	if err != nil {
		d.set.Logger.WarnContext(r.Context(), "login rejected", "from", r.RemoteAddr)
		d.page(w, http.StatusUnauthorized, err.Error())
		return
	}
	until := time.Now().Add(session)
	if !h.expires.IsZero() && h.expires.Before(until) {
		until = h.expires
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(d.secure), Value: d.tokens.cookie(hash, until), Path: "/", Expires: until,
		HttpOnly: true, Secure: d.secure, SameSite: http.SameSiteStrictMode,
	})
	d.set.Logger.InfoContext(r.Context(), "user signed in", "user", h.Name, "role", string(h.Role), "from", r.RemoteAddr)
	w.Header().Set("Location", "/")
	w.WriteHeader(http.StatusSeeOther)
}

func (d *Desk) logout(w http.ResponseWriter, r *http.Request) {
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		http.Error(w, "the form comes from another site", http.StatusForbidden)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName(d.secure), Path: "/", MaxAge: -1, HttpOnly: true, Secure: d.secure, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Location", "/")
	w.WriteHeader(http.StatusSeeOther)
}

func (d *Desk) loginPage(w http.ResponseWriter, _ *http.Request) {
	d.page(w, http.StatusUnauthorized, "")
}

const loginText = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Sign in · Postrider</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml"><link rel="stylesheet" href="/static/console.css"></head>
<body><main class="login"><h1>Postrider</h1>{{with .}}<p class="notice bad" role="alert">{{.}}</p>{{end}}
<form method="post" action="/login" class="panel stackform"><label for="token">Token</label><input id="token" name="token" type="password" required autocomplete="current-password" autofocus><button class="button primary">Sign in</button></form>
<p class="dim">A token is made by <code>postrider console token NAME</code>.</p></main></body></html>
`

func (d *Desk) page(w http.ResponseWriter, status int, problem string) {
	t, err := template.New("login").Parse(loginText)
	if err != nil {
		http.Error(w, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	console.Harden(w.Header())
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = t.Execute(w, problem) // the reader has gone
}
