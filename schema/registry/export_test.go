package registry

import "io"

// IndexesOf is indexesOf, for tests.
func IndexesOf(text string) (map[string][]int, int, error) { return indexesOf(text) }

// ReadCache reads the content of a cache file and returns the number of its schemas, for tests.
func ReadCache(r io.Reader) (int, error) {
	all, _, err := parseDisk(r)
	return len(all), err
}

// SetMost sets the number of schemas that a client keeps, for tests.
func (c *Client) SetMost(n int) { c.most = n }

// Known returns the number of schemas that a client keeps, for tests.
func (c *Client) Known() int { return len(c.known) }
