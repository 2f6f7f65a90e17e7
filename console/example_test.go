package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store/memstore"
)

// An application serves the console of its outbox below a path of its own, for those whom it has
// signed in.
func ExampleNew() {
	st := memstore.New(nil) // pgstore.New(pool, nil) in production
	c := console.New([]console.Outbox{{Name: "shop", Store: st, Office: st.Office()}}, &console.Options{
		Authenticate: func(r *http.Request) (console.User, error) {
			// A session of the application says who it is.
			return console.User{Name: "ann", Role: console.Operator}, nil
		},
	})
	defer c.Close()
	mux := http.NewServeMux()
	mux.Handle("/ops/outbox/", http.StripPrefix("/ops/outbox", c))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ops/outbox/o/shop/dead", nil))
	fmt.Println(w.Code)
	// Output: 200
}
