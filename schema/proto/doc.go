// Package proto finds the changes of a Protobuf schema that break its readers.
package proto
