// Package pgstore keeps an outbox in PostgreSQL 15 or newer.
//
// The outbox is an append-only table, read by a cursor that records which
// transactions were running when it passed. Progress is a log of its own and
// also the lease. Nothing is written per message after its
// INSERT. docs/reading.md has the proof.
//
// [Store] is one pipe of one outbox over a pool that the caller opens and closes.
// This package is the road: lease, read, settle, wake. Operations for people
// are in rooms under internal, which [Store.Office] returns; they import
// internal/db and each other downwards, never this package.
package pgstore
