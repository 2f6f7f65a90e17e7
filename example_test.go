package postrider_test

import (
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider"
)

func ExampleJSON() {
	type OrderPlaced struct{ Item string }

	m := postrider.JSON("orders", "o-1", "order.placed", OrderPlaced{"book"})
	m.Headers = map[string]string{"tenant": "north"}
	fmt.Println(m.Topic, m.Key, m.Type, m.ContentType, string(m.Payload))
	// Output: orders o-1 order.placed application/json {"Item":"book"}
}

// Enqueue validates each message before any I/O. A program that takes messages
// from elsewhere may do so earlier.
func ExampleMessage_Validate() {
	m := postrider.Message{Topic: "orders", Key: strings.Repeat("k", 600)}
	err := m.Validate()
	var limit *postrider.LimitError
	fmt.Println(errors.Is(err, postrider.ErrInvalid), errors.As(err, &limit))
	fmt.Println(limit.Field)
	// Output:
	// true true
	// key
}
