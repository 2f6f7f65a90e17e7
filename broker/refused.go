package broker

import "errors"

// ErrRefused is in the chain of an error of [Info].Ping and [Info].Probe when the
// broker has answered and rejected the credentials: a person must act.
var ErrRefused = errors.New("the broker refuses us")
