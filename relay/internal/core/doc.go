// Package core decides what a relay does: events in, actions out, time as a
// value. It does no I/O, reads no clock, starts no goroutine and draws its
// jitter from the seed it was given, so one seed and one sequence of events
// always give the same actions. Package relay runs it with real time; the
// simulation runs it with a seeded scheduler.
//
// Events and actions are per batch, never per message.
package core
