package proto

import (
	"io/fs"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
)

// Unmarshaler returns what the library has against a payload.
func Unmarshaler(fsys fs.FS, subject string) func(payload []byte) error {
	files, err := schema.ReadFiles(fsys)
	if err != nil {
		panic(err)
	}
	at := slices.IndexFunc(files, func(f schema.File) bool { return f.Subject == subject })
	p, err := compile(&evolve.Version{File: files[at], FS: fsys})
	if err != nil {
		panic(err)
	}
	root := p.roots("")[0]
	return func(payload []byte) error { return proto.Unmarshal(payload, dynamicpb.NewMessage(root)) }
}
