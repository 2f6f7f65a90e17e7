package httpbroker_test

import (
	"io"
	"log"
)

// discard returns a logger for servers whose complaints a test provokes on purpose.
func discard() *log.Logger { return log.New(io.Discard, "", 0) }
