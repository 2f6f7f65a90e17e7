// Package interop has the tests that let clients which nobody here wrote read what
// Postrider sends: the official clients of brokers, and the SDKs of the formats.
package interop
