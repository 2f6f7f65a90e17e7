package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/postrider/postrider/internal/redact"
)

// Policy is how a consumer treats a message whose version is newer than its chain.
type Policy uint8

// The policies for newer versions. None of them decodes the message.
const (
	// Retry fails the attempt, so that the message is tried again until a program that
	// knows the version is deployed. It is dead after the consumer's MaxAttempts.
	Retry Policy = iota
	// Dead makes the message a dead letter at once.
	Dead
)

// Options are the settings of a [Chain]. Zero fields mean the defaults named.
type Options struct {
	// First is the version of the chain's first type: 1. A higher one is for a
	// chain whose oldest types were removed.
	First int32
	// Unversioned is the version that a message without a version has: First.
	Unversioned int32
	// Newer is what becomes of a message of a version above the chain: Retry.
	Newer Policy
	// Unmarshal decodes a payload into a pointer to its version's type:
	// json.Unmarshal. It must be safe for concurrent use.
	Unmarshal func(data []byte, v any) error
}

// A Chain decodes a payload of any of its versions as an E, the type of its newest
// one. It is constant and safe for concurrent use. [Begin] makes one.
type Chain[E any] struct {
	*plan // nil: the chain is empty
	// older decodes all versions but the newest; nil: the chain has one version.
	older func(p *plan, version int32, payload []byte) (E, error)
}

// plan is the part of a chain that does not depend on its newest type.
type plan struct {
	first, last, unversioned int32
	newer                    Policy
	unmarshal                func(data []byte, v any) error // nil: json.Unmarshal
	types                    []reflect.Type                 // of the versions from first on
	err                      error                          // of the construction
}

// Begin returns a chain of one version, 1, whose type is E.
func Begin[E any]() Chain[E] { return BeginWith[E](Options{}) }

// BeginWith is [Begin] with settings. Settings that contradict each other are
// reported by [Chain.Err].
func BeginWith[E any](o Options) Chain[E] {
	p := &plan{first: o.First, unversioned: o.Unversioned, newer: o.Newer, unmarshal: o.Unmarshal, types: []reflect.Type{reflect.TypeFor[E]()}}
	if p.first == 0 {
		p.first = 1
	}
	if p.last = p.first; p.unversioned == 0 {
		p.unversioned = p.first
	}
	switch {
	case p.first < 0:
		p.err = fmt.Errorf("schema: Options.First is %d: it must be 1 or more", p.first)
	case p.unversioned < p.first:
		p.err = fmt.Errorf("schema: Options.Unversioned is %d, and the chain begins with %d: use a version of the chain", p.unversioned, p.first)
	case o.Newer > Dead:
		p.err = fmt.Errorf("schema: Options.Newer is %d: use schema.Retry or schema.Dead", o.Newer)
	}
	return Chain[E]{plan: p}
}

// Then returns a chain with one version more than c, whose type is B. up makes a B of
// the version before. It must be a pure function, safe for concurrent use: it runs
// again with every delivery of the message. [ErrDrop] acknowledges the message without
// its handler. Any other error, or a panic, makes the message dead at once: a message
// that a pure function refuses once is refused for ever.
func Then[A, B any](c Chain[A], up func(A) (B, error)) Chain[B] {
	p := &plan{err: errEmpty}
	if c.plan != nil {
		*p = *c.plan
	}
	p.last++
	b := reflect.TypeFor[B]()
	for i, t := range p.types {
		if t == b && p.err == nil {
			p.err = fmt.Errorf("schema: %v is the type of versions %d and %d: declare a type for each version", b, p.first+int32(i), p.last)
		}
	}
	p.types = append(p.types[:len(p.types):len(p.types)], b)
	if up == nil && p.err == nil {
		p.err = fmt.Errorf("schema: the upcaster from version %d to %d is nil", p.last-1, p.last)
	}
	from := p.last - 1
	return Chain[B]{plan: p, older: func(p *plan, version int32, payload []byte) (next B, err error) {
		var e A
		if version == from {
			e, err = decode[A](p, version, payload)
		} else {
			e, err = c.older(p, version, payload)
		}
		if err != nil {
			return next, err
		}
		return upcast(from, up, e)
	}}
}

var errEmpty = errors.New("schema: the chain is empty: begin it with schema.Begin")

// Err reports why the chain cannot be used, or nil. Consumers ask it when they start.
func (c Chain[E]) Err() error {
	switch {
	case c.plan == nil:
		return errEmpty
	case c.err == nil && c.unversioned > c.last:
		return fmt.Errorf("schema: Options.Unversioned is %d, and the chain ends with %d: use a version of the chain", c.unversioned, c.last)
	}
	return c.err
}

// First is the oldest version that the chain decodes.
func (c Chain[E]) First() int32 { return c.plan.of().first }

// Last is the newest version that the chain decodes: that of E. Writers of an E put it
// into the message's SchemaVersion.
func (c Chain[E]) Last() int32 { return c.plan.of().last }

// Newer is what becomes of a message of a version above Last.
func (c Chain[E]) Newer() Policy { return c.plan.of().newer }

// of is p, or the plan of an empty chain.
func (p *plan) of() *plan {
	if p == nil {
		return &plan{}
	}
	return p
}

// DecodesJSON reports whether the chain decodes with json.Unmarshal, the default.
func (c Chain[E]) DecodesJSON() bool { return c.plan.of().unmarshal == nil }

// WithUnmarshal returns the same chain with another decoder, for tests that decode
// more strictly than the program does.
func (c Chain[E]) WithUnmarshal(unmarshal func(data []byte, v any) error) Chain[E] {
	if c.plan != nil {
		p := *c.plan
		p.unmarshal = unmarshal
		c.plan = &p
	}
	return c
}

// Decode returns the payload of a message of that version as an E; version 0 is that
// of [Options].Unversioned. Errors are a *[VersionError], a *[DecodeError], an
// *[UpcastError], or [ErrDrop]. None of their texts quotes the payload.
func (c Chain[E]) Decode(version int32, payload []byte) (e E, err error) {
	if c.plan == nil || c.err != nil {
		return e, c.Err()
	}
	if version == 0 {
		version = c.unversioned
	}
	switch {
	case version == c.last:
		return decode[E](c.plan, version, payload)
	case version > c.last, version < c.first:
		return e, &VersionError{Version: version, First: c.first, Last: c.last}
	}
	return c.older(c.plan, version, payload)
}

func decode[E any](p *plan, version int32, payload []byte) (e E, err error) {
	if p.unmarshal == nil {
		err = json.Unmarshal(payload, &e)
	} else {
		err = p.unmarshal(payload, &e)
	}
	if err != nil {
		var none E
		return none, &DecodeError{Version: version, Type: reflect.TypeFor[E]().String(), Err: redact.JSON(err), Raw: err}
	}
	return e, nil
}

// upcast runs one upcaster and makes an error of a panic.
func upcast[A, B any](from int32, up func(A) (B, error), e A) (next B, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &UpcastError{From: from, To: from + 1, Panic: fmt.Sprintf("%T", p)}
		}
	}()
	switch next, err = up(e); {
	case err == nil:
		return next, nil
	case errors.Is(err, ErrDrop):
		return next, ErrDrop
	}
	return next, &UpcastError{From: from, To: from + 1, Err: err}
}
