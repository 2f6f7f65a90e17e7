// Package compat proves that a JSON Schema accepts every document of another one, or
// finds a document that it refuses.
//
// Both answers are certain: a proof covers every document, and an example was checked
// with both schemas. What neither proof nor example settles is reported as undecided.
package compat
