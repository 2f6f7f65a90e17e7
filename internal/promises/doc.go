// Package promises holds the tests of docs/guarantees.md that need real databases and
// brokers, sorted by promise.
//
// The first word of a file's name is the subject of its tests:
//
//   - loss: no committed message is lost, none is invented, and the books balance (L, P, Q, A)
//   - order: each key arrives and is handled in order, and no key is stuck (O, S)
//   - effect: each message has one effect (E)
//   - bounds: duplicates and memory have limits (D, G)
//   - control: rights, secrets and the journal (C)
//   - rig: shared code
//
// The tests of a relay cause faults around it and count afterwards: servers and relays are
// killed, frozen, made read-only or started late. The truth is the committed rows of the
// outbox table. The tests of consumers count committed effects.
package promises
