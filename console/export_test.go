package console

import (
	"net/url"
	"strconv"
	"time"

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

// SendForms sends more forms than are remembered, and returns how many may be and how many are.
func SendForms() (most, left int) {
	var s sentForms
	now := time.Now()
	for i := range sentMost + 10 {
		s.take(strconv.Itoa(i), now.Add(time.Duration(i)))
	}
	if s.take(strconv.Itoa(sentMost+9), now.Add(time.Hour)) || !s.take("0", now.Add(time.Hour)) || !s.take(strconv.Itoa(sentMost+9), now.Add(2*sentFor)) {
		return 0, len(s.all)
	}
	return sentMost, len(s.all)
}
