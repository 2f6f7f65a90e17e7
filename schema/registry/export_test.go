package registry

import "io"

// IndexOf is indexOf, for tests.
func IndexOf(text, record string) ([]int, error) { return indexOf(text, record) }

// ReadCache reads the content of a cache file and returns the number of its schemas, for tests.
func ReadCache(r io.Reader) (int, error) {
	all, err := parseDisk(r)
	return len(all.Schemas), err
}
