package proto

import (
	"fmt"
	"math/rand/v2"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/postrider/postrider/schema/evolve"
)

// Sound draws payloads of a writer's schema and returns one that the reader misreads
// although nothing was found, with the number of payloads.
func Sound(writer, reader *evolve.Version, binary bool, seed uint64) (payloadsMade int, misreading string) {
	found, err := reads(writer, reader, binary)
	if err != nil || len(found) > 0 {
		return 0, ""
	}
	w, errW := compile(writer)
	r, errR := compile(reader)
	if errW != nil || errR != nil {
		return 0, ""
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, root := range payloads(w) {
		if r.messages[root] == nil {
			continue // a new one
		}
		for range 6 {
			m := random(rnd, w.messages[root], 3)
			payloadsMade++
			if what := misread(m, r.messages[root], binary); what != "" {
				return payloadsMade, fmt.Sprintf("%s: %v", what, m)
			}
		}
	}
	return payloadsMade, ""
}

func random(rnd *rand.Rand, d protoreflect.MessageDescriptor, deep int) *dynamicpb.Message {
	mk := &maker{left: maxMessages}
	m := mk.filled(d, 0)
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if rnd.IntN(3) == 0 || f.Message() != nil && deep == 0 {
			continue
		}
		of := f
		if f.IsMap() {
			of = f.MapValue()
		}
		for range 1 + rnd.IntN(2) {
			if of.Message() != nil {
				if deep > 0 {
					mk.set(m, f, protoreflect.ValueOfMessage(random(rnd, of.Message(), deep-1)))
				}
				continue
			}
			all := mk.values(of, 0)
			mk.set(m, f, all[rnd.IntN(len(all))])
		}
	}
	return m
}
