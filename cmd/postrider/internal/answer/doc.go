// Package answer holds what commands answer: each type is an object of `--output json`, and writes itself for a person.
package answer
