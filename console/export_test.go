package console

import (
	"net/url"

	"github.com/postrider/postrider/store/ops"
)

// FieldsOf returns the fields of a form and the flags of a command for a match.
func FieldsOf(m *ops.Match) (url.Values, []string) { return valuesOf(m), matchFlags(m) }

// Endpoints lists what a console answers, for the test of roles.
func (c *Console) Endpoints() (all []Endpoint) {
	for _, e := range c.endpoints() {
		all = append(all, Endpoint{e.method, e.path, e.need})
	}
	return all
}

// Endpoint is one of them.
type Endpoint struct {
	Method, Path string
	need         right
}

// Open reports whether the endpoint needs no role on an outbox.
func (e Endpoint) Open() bool { return e.need == nobody || e.need == signedIn }

// TokenFor returns the token of a user's forms for a cookie.
func TokenFor(c *Console, user, cookie string) string {
	return (&request{Console: c, user: User{Name: user}}).tokenOf(cookie)
}
