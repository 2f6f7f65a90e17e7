// Package languages holds writers and consumers in TypeScript, Python and Java;
// its test runs them. See README.md.
package languages
