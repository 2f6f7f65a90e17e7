package httpbroker

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Credential is a secret text that may change while the program runs. It is asked
// at most once a second, before a request. Its errors must not hold the text.
type Credential func(ctx context.Context) (string, error)

// Static is a credential that never changes.
func Static(text string) Credential {
	return func(context.Context) (string, error) { return text, nil }
}

// File is a credential that stands in a file. Space around it does not count.
func File(path string) Credential {
	return func(context.Context) (string, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("httpbroker: credential: %w", err)
		}
		return strings.TrimSpace(string(text)), nil
	}
}

// credentialAge is how old a credential may be.
const credentialAge = time.Second

// cached is what a credential said last, read into T. A text that cannot be had or
// read leaves the former one in force: half of a rotation is no outage.
type cached[T any] struct {
	from Credential
	read func(text string) (T, error)

	mu    sync.Mutex
	have  bool
	asked time.Time
	text  string
	value T
}

func (c *cached[T]) get(ctx context.Context) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have && time.Since(c.asked) < credentialAge {
		return c.value, nil
	}
	c.asked = time.Now()
	text, err := c.from(ctx)
	if err == nil && (text != c.text || !c.have) {
		var value T
		if value, err = c.read(text); err == nil {
			c.have, c.text, c.value = true, text, value
		}
	}
	if c.have {
		return c.value, nil
	}
	return c.value, err
}

// oneLine refuses what would be two headers.
func oneLine(text string) (string, error) {
	if !printable(text) || text == "" {
		return "", fmt.Errorf("httpbroker: credential: is no header value: %d bytes that are not one line of printable text", len(text))
	}
	return text, nil
}

// printable reports whether the text is a header value that every server reads alike.
func printable(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c > '~' || c == ' ' && (i == 0 || i == len(v)-1) {
			return false
		}
	}
	return true
}
