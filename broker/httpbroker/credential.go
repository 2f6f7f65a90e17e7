package httpbroker

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Credential returns a secret text that may change while the program runs. It is called
// at most once a second, before a request. Its errors must not contain the text.
type Credential func(ctx context.Context) (string, error)

// Static returns a credential that never changes.
func Static(text string) Credential {
	return func(context.Context) (string, error) { return text, nil }
}

// File returns a credential that reads a file. Surrounding space is removed.
func File(path string) Credential {
	return func(context.Context) (string, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("httpbroker: credential: %w", err)
		}
		return strings.TrimSpace(string(text)), nil
	}
}

// credentialAge is the age at which a credential is read again.
const credentialAge = time.Second

// cached is the last value of a credential, parsed into T. If the text cannot be read or
// parsed, the last value stays in force: a half-finished rotation is no outage.
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

// oneLine refuses a text that is not a single header value.
func oneLine(text string) (string, error) {
	if !printable(text) || text == "" {
		return "", fmt.Errorf("httpbroker: credential: invalid header value: its %d bytes must be one line of printable text", len(text))
	}
	return text, nil
}

// printable reports whether all servers read the text as the same header value.
func printable(v string) bool {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c > '~' || c == ' ' && (i == 0 || i == len(v)-1) {
			return false
		}
	}
	return true
}
