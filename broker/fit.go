package broker

import (
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// Fit reports the first declared limit that a message breaks on its way to
// destination under the broker's own key, as a *[postrider.LimitError]. size is
// what the broker counts, 0 for the payload on the wire, which is the least that
// it can be.
func (i *Info) Fit(destination, key string, w *envelope.Wire, size int) error {
	if i.TopicProblem != nil {
		if err := i.TopicProblem(destination); err != nil {
			return &postrider.LimitError{Field: "topic", Reason: err.Error()}
		}
	}
	headers := w.Size() - len(w.Payload)
	if size == 0 {
		size = len(w.Payload)
	}
	for _, l := range [...]struct {
		field, reason string
		n, most       int
	}{
		{"topic", "is %d bytes, the limit of %s is %d", len(destination), i.MaxTopicBytes},
		{"key", "is %d bytes, the limit of %s is %d", len(key), i.MaxKeyBytes},
		{"headers", "are %d with those of the format, the limit of %s is %d", len(w.Headers), i.MaxHeaders},
		{"headers", "are %d bytes with those of the format, the limit of %s is %d", headers, i.MaxHeaderBytes},
		{"payload", "makes a message of %d bytes, the limit of %s is %d", size, i.MaxMessageBytes},
	} {
		if l.most > 0 && l.n > l.most {
			return &postrider.LimitError{Field: l.field, Reason: fmt.Sprintf(l.reason, l.n, i.Name, l.most)}
		}
	}
	return nil
}
