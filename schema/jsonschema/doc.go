// Package jsonschema checks payloads against JSON Schemas from files, and finds the
// changes of a schema that break its readers.
//
//	//go:embed schemas
//	var files embed.FS
//
//	sub, err := fs.Sub(files, "schemas")
//	set, err := schema.Open(sub, nil, jsonschema.Compiler())
//	ob := outbox.New(dialect.Postgres, &outbox.Options{Validator: set})
//
// A schema is a file SUBJECT/NNN.json, as [schema.ReadFiles] has it: the subject is the
// message's type, and the number its schema version. Nothing is ever read from a network:
// a reference leads to a file of the same file system.
package jsonschema
