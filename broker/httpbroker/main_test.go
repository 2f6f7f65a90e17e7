package httpbroker_test

import (
	"io"
	"log"
)

// discard is for servers that would complain about what a test does on purpose.
func discard() *log.Logger { return log.New(io.Discard, "", 0) }
