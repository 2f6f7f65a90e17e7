package compat

import (
	"encoding/json"

	"github.com/postrider/postrider/schema/evolve"
)

// Search looks for documents that break a pair, whatever a proof found.
func Search(writer, reader *evolve.Version, lenient bool) (texts []json.RawMessage, err error) {
	w, err := compile(writer.Path, writer.FS)
	if err != nil {
		return nil, err
	}
	r, err := compile(reader.Path, reader.FS)
	if err != nil {
		return nil, err
	}
	for _, e := range newCheck(lenient).examples(w, r) {
		texts = append(texts, e.text)
	}
	return texts, nil
}
