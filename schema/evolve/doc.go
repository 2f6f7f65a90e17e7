// Package evolve decides which version of a schema may follow which: seven modes of
// compatibility over the versions of a subject, and the order of their deploy.
//
// A language compares two schemas: see schema/jsonschema/compat.
package evolve
