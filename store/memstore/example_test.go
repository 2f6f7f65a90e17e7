package memstore_test

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store/memstore"
)

// A database for tests: a transaction's messages are there once it is committed.
func ExampleNew() {
	st := memstore.New(nil)

	tx := st.Begin()
	if err := tx.Enqueue(postrider.JSON("orders", "o-1", "order.placed", "book")); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(st.Committed()), "before the commit")
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(st.Committed()), "after it")

	s, err := st.Office().Admin.Status(context.Background())
	fmt.Println(s.Pipe, err)
	// Output:
	// 0 before the commit
	// 1 after it
	// main <nil>
}
