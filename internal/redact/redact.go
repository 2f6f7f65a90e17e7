// Package redact keeps values of a payload out of the errors about it.
package redact

import (
	"encoding/json"
	"errors"
	"fmt"
)

// JSON keeps what encoding/json reports about place and type, and drops the value. The
// errors of other decoders (times, numbers, types that decode themselves) quote
// what they could not read: of these only the type is told.
func JSON(err error) error {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return fmt.Errorf("field %q at byte %d is not of type %s", mismatch.Field, mismatch.Offset, mismatch.Type)
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("invalid JSON at byte %d", syntax.Offset)
	}
	return fmt.Errorf("a %T, whose text may quote the value", err)
}
