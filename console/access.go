package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Role is what a user may do to an outbox.
type Role string

// The roles. To see payloads and to act are separate rights.
const (
	Viewer   Role = "viewer"   // sees everything but payloads and headers
	Payload  Role = "payload"  // a viewer who may read payloads; each reading is journaled
	Operator Role = "operator" // a viewer who may act
	Admin    Role = "admin"    // all of it, and what cannot be undone for a whole pipe
)

// Roles lists the roles.
func Roles() []Role { return []Role{Viewer, Payload, Operator, Admin} }

// ParseRole reads the name of a role.
func ParseRole(text string) (Role, error) {
	for _, r := range Roles() {
		if text == string(r) {
			return r, nil
		}
	}
	return "", fmt.Errorf("role %q: use viewer, payload, operator or admin", text)
}

// User is who sends a request.
type User struct {
	// Name is the actor in the journal. Required.
	Name string
	// Role on every outbox that Roles does not name; "": none.
	Role Role
	// Roles on single outboxes, by name.
	Roles map[string]Role
}

// On returns the user's role on an outbox.
func (u User) On(outbox string) Role {
	if r, ok := u.Roles[outbox]; ok {
		return r
	}
	return u.Role
}

// right is one thing that a role may.
type right uint8

const (
	nobody   right = iota // needs no user
	signedIn              // any user
	see
	open
	act
	manage
)

// may reports whether a role has a right.
func (r Role) may(what right) bool {
	switch what {
	case nobody, signedIn:
		return true
	case see:
		return r == Viewer || r == Payload || r == Operator || r == Admin
	case open:
		return r == Payload || r == Admin
	case act:
		return r == Operator || r == Admin
	case manage:
		return r == Admin
	}
	return false
}

// needed names the roles that have a right, for a refusal.
func (what right) needed() string {
	var names []string
	for _, r := range Roles() {
		if r.may(what) {
			names = append(names, string(r))
		}
	}
	return strings.Join(names, " or ")
}

// policy allows what the console's own files do and nothing else. Scripts cannot make markup of
// text: there is no Trusted Types policy.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Harden sets the headers that every page of the console has: a policy for scripts and styles, no
// frames, no cache. Pages beside the console, such as one to sign in, use it too.
func Harden(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// refusal is an error with a status of HTTP.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

var errNoPage = errors.New("page not found")

// guard answers for an endpoint: it asks who the user is, what he may, and whether a form is the
// console's own, and only then serves.
func (c *Console) guard(e endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q := &request{Console: c, w: w, r: r, ctx: r.Context(), root: rootOf(r.URL.Path)}
		if err := q.admit(e); err != nil {
			q.fail(err)
			return
		}
		if err := e.serve(q); err != nil {
			q.fail(err)
		}
	}
}

// rootOf is the way from a path back to the console's root. A relative one works under any prefix.
func rootOf(path string) string {
	return "./" + strings.Repeat("../", max(strings.Count(path, "/")-1, 0))
}

func (q *request) admit(e endpoint) error {
	if e.need == nobody {
		return nil
	}
	if q.opts.Authenticate == nil {
		return &refusal{http.StatusForbidden, "this console has no Authenticate function: the program that serves it decides who may look"}
	}
	user, err := q.opts.Authenticate(q.r)
	if err == nil && user.Name == "" {
		err = errors.New("the user has no name")
	}
	if err != nil {
		return &unknownUserError{err}
	}
	q.user = user
	if e.need == signedIn {
		return nil
	}
	if err := q.arrive(); err != nil {
		return err
	}
	role := user.On(q.place.outbox.Name)
	if !role.may(see) { // that an outbox exists is a secret too
		return errNoPage
	}
	q.role = role
	if e.method == http.MethodPost {
		if err := q.authentic(); err != nil {
			return err
		}
	}
	if !role.may(e.need) {
		return &refusal{http.StatusForbidden, fmt.Sprintf("your role on %s is %s; this needs %s", q.place.outbox.Name, role, e.need.needed())}
	}
	return nil
}

// unknownUserError is an error of Options.Authenticate.
type unknownUserError struct{ err error }

func (e *unknownUserError) Error() string { return "not signed in: " + e.err.Error() }

func (e *unknownUserError) Unwrap() error { return e.err }

// maxForm bounds the body of a request.
const maxForm = 64 << 10

// authentic reports why a form is not one that the console has shown to this user.
func (q *request) authentic() error {
	if err := q.cross.Check(q.r); err != nil {
		return &refusal{http.StatusForbidden, "the form comes from another site: open the page here and send it again"}
	}
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	if err := q.r.ParseForm(); err != nil {
		return &refusal{http.StatusBadRequest, "the form cannot be read: " + err.Error()}
	}
	cookie, err := q.r.Cookie(q.cookieName())
	if err != nil || cookie.Value == "" || !hmac.Equal([]byte(q.r.PostForm.Get("token")), []byte(q.tokenOf(cookie.Value))) {
		return &refusal{http.StatusForbidden, "the form has no valid token: it is too old, or the console was restarted; go back, reload the page and send it again"}
	}
	return nil
}

// tokenOf is the token of forms for a user and his cookie.
func (q *request) tokenOf(cookie string) string {
	mac := hmac.New(sha256.New, q.secret)
	fmt.Fprintf(mac, "form\x00%d\x00%s\x00%s", len(q.user.Name), q.user.Name, cookie)
	return hex.EncodeToString(mac.Sum(nil))
}

// token returns the token for the forms of a page, and sets its cookie where that is missing.
func (q *request) token() string {
	if cookie, err := q.r.Cookie(q.cookieName()); err == nil && cookie.Value != "" {
		return q.tokenOf(cookie.Value)
	}
	value := rand.Text()
	http.SetCookie(q.w, &http.Cookie{
		Name: q.cookieName(), Value: value, Path: "/", HttpOnly: true, Secure: q.secure(), SameSite: http.SameSiteStrictMode,
	})
	return q.tokenOf(value)
}

// secure reports whether the browser speaks TLS, to the console or to a proxy before it.
func (q *request) secure() bool {
	return q.r.TLS != nil || q.r.Header.Get("X-Forwarded-Proto") == "https"
}

// cookieName is that of the forms' cookie. A browser sends a cookie with the prefix __Host- to the
// host that has set it alone; without TLS it would not keep it.
func (q *request) cookieName() string {
	if q.secure() {
		return "__Host-postrider-form"
	}
	return "postrider-form"
}
