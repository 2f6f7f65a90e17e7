package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store/ops"
)

// An act that the store lacks is not offered; the page has the reason of the store instead.
func TestActsThatAStoreLacks(t *testing.T) {
	r := newRig(t, "", nil)
	r.die("E1", "rejected", postrider.Message{Topic: "orders", Key: "k"})
	office := *r.st.Office()
	office.Orders, office.Records = nil, nil
	office.Lacks = map[ops.Ability]string{ops.CanOrder: "one by one", ops.CanRecord: "log it yourself"}
	c := console.New([]console.Outbox{{Name: "shop", Store: r.st, Office: &office}}, &console.Options{
		Authenticate: func(*http.Request) (console.User, error) { return console.User{Name: "ann", Role: console.Admin}, nil },
	})
	t.Cleanup(c.Close)
	r.serve(c)
	for _, c := range []struct{ page, want, not string }{
		{"message?seq=1", "log it yourself", "Show payload"},
		{"message?seq=1", "do/retry", "do/skip"},
	} {
		if _, body := r.get("/o/shop/" + c.page); !strings.Contains(body, c.want) || strings.Contains(body, c.not) {
			t.Errorf("%s: want %q and no %q:\n%s", c.page, c.want, c.not, body)
		}
	}
}
