package console_test

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/postrider/postrider/store/memstore"
)

// A pipe that does not exist is asked for while every page and the regular look use the default
// one: under -race this finds any of them in the map of pipes.
func TestUnknownPipeBesideTheDefaultOne(t *testing.T) {
	st := memstore.New(nil)
	office := st.Office()
	office.Pipes = manyPipes{n: 3}
	r := rigOf(t, st, office, ann)
	form := r.form("/o/shop/do/remove-pipe?pipe=pipe-1")
	form.Set("pipe", "main")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { r.console.Run(ctx) })
	for path, want := range map[string]int{
		"/o/shop@none/": http.StatusNotFound, "/": http.StatusOK, "/o/shop/pipes": http.StatusOK, "/o/shop/do/remove-pipe?pipe=pipe-1": http.StatusOK,
	} {
		all.Go(func() {
			for range 50 {
				if status, body := r.get(path); status != want {
					t.Errorf("%s: status %d, want %d\n%s", path, status, want, body)
					return
				}
			}
		})
	}
	if status, body := r.send(http.MethodPost, "/o/shop/do/remove-pipe", form); status != http.StatusUnprocessableEntity {
		t.Errorf("the default pipe is removed: status %d\n%s", status, body)
	}
	cancel()
	all.Wait()
}
