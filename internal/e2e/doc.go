// Package e2e holds the tests of outbox, inbox and consumer that need real
// drivers: the packages themselves import none.
package e2e
