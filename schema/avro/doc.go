// Package avro checks payloads against Avro schemas from files, and finds the changes of a
// schema that break its readers.
package avro
