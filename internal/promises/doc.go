// Package promises holds the tests of docs/guarantees.md that need real databases and
// brokers, sorted by promise.
//
// A file's first word is what its tests hold:
//
//   - loss: nothing committed is lost or invented, and the books balance (L, P, Q, A)
//   - order: each key arrives and is handled in order, and none is stuck (O, S)
//   - effect: each message has one effect (E)
//   - bounds: duplicates and memory have limits (D, G)
//   - control: who may do and see what (C)
//   - rig: what the tests share
//
// The tests of a relay break things around it and count afterwards: servers and
// relays are killed, frozen, made read-only or never there, and the truth is the
// committed rows of the outbox table. The tests of consumers count committed effects.
package promises
