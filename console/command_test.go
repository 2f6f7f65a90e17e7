package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store/memstore"
)

// The command of a page names the pipe that the page is about, also where that is the console's
// own and differs from the default of a command.
func TestCommandNamesThePipe(t *testing.T) {
	main := memstore.New(nil)
	audit := main.Pipe("audit")
	c := console.New([]console.Outbox{{Name: "shop", Store: audit, Office: audit.Office(), Flags: "--relay shop"}}, &console.Options{
		Authenticate: func(*http.Request) (console.User, error) { return console.User{Name: "ann", Role: console.Admin}, nil },
	})
	defer c.Close()
	r := &rig{T: t, console: c}
	r.serve(c)
	for _, page := range []string{"", "dead", "keys", "lanes", "journal"} {
		if _, body := r.get("/o/shop/" + page); !strings.Contains(body, " --relay shop --pipe audit</code>") {
			t.Errorf("the command of page %q does not name the pipe:\n%s", page, body)
		}
	}
}
