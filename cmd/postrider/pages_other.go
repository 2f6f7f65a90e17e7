//go:build !linux

package main

// releasePages does nothing where the program's mappings are not known.
func releasePages() {}
