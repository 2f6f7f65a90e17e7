package schemas

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
	"github.com/postrider/postrider/seal"
	"github.com/postrider/postrider/store/ops"
)

// rowBytes bounds the payloads that are read at once.
const rowBytes = 64 << 20

// rows is what became of the payloads of an outbox.
type rows struct {
	Read       int       `json:"read"`
	Checked    int       `json:"checked"`
	Refused    int       `json:"refused"`
	Unreadable int       `json:"unreadable"`     // sealed, erased or left in the database
	Unknown    int       `json:"without_schema"` // no schema of their type was checked
	Reasons    []refusal `json:"reasons"`
}

// refusal is a rule that payloads of one version broke. It has no value of a payload.
type refusal struct {
	Subject  string `json:"subject"`
	Written  int32  `json:"written"` // the version of the payloads
	Version  int32  `json:"version"` // the version of the schema
	Reason   string `json:"reason"`
	Messages int    `json:"messages"`
	ID       string `json:"id"` // of the newest of them
}

// checkRows compares the newest payloads of the outbox with the newest schemas.
func (a *App) checkRows(cmd *cobra.Command, f *folder, subjects []string, n int) (*rows, error) {
	st, err := a.Store(cmd)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	if err := st.Need(ops.CanSample); err != nil {
		return nil, exit.Usagef("%w; leave --rows out", err)
	}
	messages, err := st.Samples.Newest(cmd.Context(), n, rowBytes)
	if err != nil {
		return nil, err
	}
	r, payloads := &rows{Read: len(messages), Reasons: []refusal{}}, checks{}
	for i := range messages {
		m := &messages[i]
		versions := f.subjects[m.Type]
		if len(versions) == 0 || !slices.Contains(subjects, m.Type) {
			r.Unknown++
			continue
		}
		if m.Headers[seal.HeaderAlgorithm] != "" || m.Headers[postrider.ErasedHeader] != "" || len(m.Payload) == 0 && m.Headers[envelope.DataRef] != "" {
			r.Unreadable++
			continue
		}
		check, err := payloads.of(versions, m.SchemaVersion)
		if err != nil {
			return nil, open.WrongSchemas(f.place, err)
		}
		r.Checked++
		if reason := check(m); reason != "" {
			r.refuse(m, versions[len(versions)-1].Version, reason)
		}
	}
	return r, nil
}

// checks are the checks by the newest schema of each subject, by that and the writer's version.
type checks map[string]schema.Payloads

// of makes the check of what a version wrote; 0 is the oldest.
func (c checks) of(versions []evolve.Version, written int32) (schema.Payloads, error) {
	newest := &versions[len(versions)-1]
	name := fmt.Sprintf("%d %s", written, newest.Subject)
	if check := c[name]; check != nil {
		return check, nil
	}
	var writer *schema.File
	at := slices.IndexFunc(versions, func(v evolve.Version) bool { return v.Version == written || written == 0 })
	if at >= 0 && versions[at].Format == newest.Format {
		writer = &versions[at].File
	}
	for _, one := range open.Compilers() {
		if one.Format == newest.Format {
			check, err := one.Compile(newest.FS, &newest.File, writer)
			c[name] = check
			return check, err
		}
	}
	return nil, fmt.Errorf("%s: payloads of the format %s cannot be checked", newest.Path, newest.Format)
}

func (r *rows) refuse(m *postrider.Message, newest int32, reason string) {
	r.Refused++
	at := slices.IndexFunc(r.Reasons, func(o refusal) bool {
		return o.Subject == m.Type && o.Written == m.SchemaVersion && o.Reason == reason
	})
	if at < 0 {
		r.Reasons = append(r.Reasons, refusal{Subject: m.Type, Written: m.SchemaVersion, Version: newest, Reason: reason, ID: m.ID})
		at = len(r.Reasons) - 1
	}
	r.Reasons[at].Messages++
}

func (r *rows) text(w *tabwriter.Writer) {
	if r == nil {
		return
	}
	fmt.Fprintln(w)
	output.Row(w, fmt.Sprintf("payloads: %d read, %d checked, %d refused, %d sealed, erased or elsewhere, %d without a schema here", r.Read, r.Checked, r.Refused, r.Unreadable, r.Unknown))
	for i := range r.Reasons {
		output.Row(w, "  "+r.Reasons[i].text())
	}
}

func (r *refusal) text() string {
	return fmt.Sprintf("%s: %d written as version %d %s version %d: %s (message %s)", r.Subject, r.Messages, r.Written, plural(r.Messages, "breaks", "break"), r.Version, r.Reason, r.ID)
}
