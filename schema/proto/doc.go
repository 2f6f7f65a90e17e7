// Package proto checks payloads against Protobuf schemas from files, and finds the changes of
// a schema that break its readers.
package proto
