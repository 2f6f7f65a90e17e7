// Package sets has the small sets that the engine computes with: keys, and the ascending
// indexes of a batch's messages.
package sets

import "slices"

// Keys is a set of keys; the empty key is never in it.
type Keys map[string]struct{}

// Has reports whether the key is in the set.
func (s Keys) Has(key string) bool { _, ok := s[key]; return ok }

// Add adds the key.
func (s Keys) Add(key string) {
	if key != "" {
		s[key] = struct{}{}
	}
}

// Without removes the ascending subset from the list, in place.
func Without(list, subset []int) []int {
	return slices.DeleteFunc(list, func(i int) bool { _, ok := slices.BinarySearch(subset, i); return ok })
}

// Merge joins two lists into an ascending one.
func Merge(a, b []int) []int {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return out
}
