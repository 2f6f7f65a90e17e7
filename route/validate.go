package route

import (
	"errors"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/seal"
)

// validation returns the check of the rule, nil if it is off.
func (r *Rule) validation(name string) (check func(m *postrider.Message) error, wrong string) {
	switch {
	case r.Validate > Reject:
		return nil, "validate is unknown: use off, warn or reject"
	case r.Validate == Off:
		return nil, ""
	case r.Validator == nil:
		return nil, "validate needs schemas: give their folder"
	case r.Format == envelope.Confluent && r.Framing == envelope.Framed:
		return nil, "validate cannot read a payload behind the id that its writer framed: let the writer validate, and remove validate"
	case r.Validate == Warn && r.Warn == nil:
		return nil, "validate is warn, and Warn is nil: give a function that logs or counts"
	}
	return func(m *postrider.Message) error {
		if unreadable(m) {
			return nil
		}
		err := r.Validator.Check(m)
		switch {
		case err == nil:
			return nil
		case r.Validate == Warn:
			r.Warn(m, err)
			return nil
		}
		reason := "cannot be checked"
		var invalid *schema.InvalidError
		if errors.As(err, &invalid) {
			reason = invalid.Refusal()
		}
		return &envelope.RouteError{Code: schema.CodeInvalid, Rule: name, Field: "payload", Reason: reason}
	}, ""
}

// unreadable reports whether the relay cannot see the payload as its writer made it.
func unreadable(m *postrider.Message) bool {
	away := m.Headers[envelope.DataRef] != "" || m.Headers[postrider.ErasedHeader] != ""
	return m.Headers[seal.HeaderAlgorithm] != "" || away && len(m.Payload) == 0
}
