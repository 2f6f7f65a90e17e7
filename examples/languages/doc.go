// Package languages holds writers and consumers in TypeScript, Python and Java, which
// its tests run, and in C#, of which they run the statements. See README.md.
package languages
