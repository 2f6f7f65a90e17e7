package answer

import (
	"fmt"
	"text/tabwriter"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
)

// ChecksText writes what would become of each message, or without one how many routes are in order.
func ChecksText(w *tabwriter.Writer, found []admin.Checked, routes int) {
	if len(found) == 0 {
		output.Row(w, RoutesInOrder(routes)+"; give --samples or --newest to try them")
		return
	}
	for _, c := range found {
		output.Row(w, "message", c.Message)
		output.Row(w, "  of", fmt.Sprintf("topic %s, type %s", c.Topic, orNone(c.Type)))
		output.Row(w, "  route", orNone(c.Rule))
		output.Row(w, "  to", c.Destination)
		output.Row(w, "  key", orNone(c.Key))
		output.Row(w, "  format", c.Format)
		size := fmt.Sprintf("%d bytes, of which %d payload", c.Bytes, c.Payload)
		if c.Limit > 0 {
			size += fmt.Sprintf("; the limit is %d", c.Limit)
		}
		output.Row(w, "  size", size)
		for _, name := range c.Names() {
			output.Row(w, "  header", name+": "+c.Headers[name])
		}
		if c.Refused != "" {
			output.Row(w, "  REFUSED", c.Refused)
		}
	}
}

// RoutesInOrder is the answer when all routes are in order.
func RoutesInOrder(routes int) string {
	switch routes {
	case 0:
		return "there are no routes, every message goes to its own topic"
	case 1:
		return "1 route is in order"
	}
	return fmt.Sprintf("%d routes are in order", routes)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
