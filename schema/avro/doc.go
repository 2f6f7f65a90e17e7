// Package avro finds the changes of an Avro schema that break its readers.
package avro
