// Package sim runs relay cores against a world of its own: a database in
// memory, a broker, clocks and people, in virtual time, on one goroutine and
// from one seed. It breaks everything a seed says and checks the promises of
// docs/guarantees.md while it does.
//
// A seed makes a plan: a world and a list of operations (transactions, crashes,
// pauses, outages, acts). The first part of a run carries them out and checks
// safety; then everything heals and every key must move on. A plan that breaks
// a promise is shrunk to the operations that are needed for it.
package sim
