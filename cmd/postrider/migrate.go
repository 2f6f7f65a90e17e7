package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/store"
)

type migrateAnswer struct {
	Have   int           `json:"have"`
	Want   int           `json:"want"`
	DryRun bool          `json:"dry_run,omitempty"`
	Steps  []migrateStep `json:"steps"`
}

type migrateStep struct {
	Version int     `json:"version"`
	Name    string  `json:"name"`
	Down    bool    `json:"down,omitempty"`
	Seconds float64 `json:"seconds"`
}

func (a *app) migrateCommand() *cobra.Command {
	var (
		dryRun, printSQL bool
		adopt            bool
		to               int
	)
	up := func(cmd *cobra.Command, _ []string) error {
		return a.migrate(cmd, store.MigrateRequest{Target: to, DryRun: dryRun, Adopt: adopt}, printSQL)
	}
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or change the outbox's schema",
		Long: "Brings the schema to the newest version. Two at once are safe: one works, the other\n" +
			"finds nothing to do. --print-sql needs no database: give its statements to your own\n" +
			"migration tool.",
		Example: "  postrider migrate --store postgres://postgres@localhost/shop\n  postrider migrate --store sqlite:shop.db --dry-run",
		Args:    noArgs,
		RunE:    up,
	}
	fs := cmd.PersistentFlags()
	fs.BoolVar(&dryRun, "dry-run", false, "print the steps, change nothing")
	fs.BoolVar(&printSQL, "print-sql", false, "print the statements, change nothing")
	fs.IntVar(&a.set.lanes, "lanes", 0, "lanes of a new outbox, never changed afterwards (default 64)")
	mark(fs, "lanes")
	cmd.Flags().BoolVar(&adopt, "adopt", false, "take over an outbox that was dumped and restored into this server,\nor whose sequence was set back while no relay ran")
	upCmd := &cobra.Command{Use: "up", Short: "Bring the schema to the newest version (the default)", Args: noArgs, RunE: up}
	upCmd.Flags().IntVar(&to, "to", 0, "stop at this version (default: the newest)")

	var yes bool
	down := &cobra.Command{
		Use: "down", Short: "Remove the outbox with everything in it", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes && !dryRun && !printSQL {
				return usagef("this removes the outbox and every message in it: add --yes, or --dry-run to see the steps")
			}
			return a.migrate(cmd, store.MigrateRequest{Target: -1, DryRun: dryRun}, printSQL)
		},
	}
	down.Flags().BoolVar(&yes, "yes", false, "really remove everything")
	status := &cobra.Command{
		Use: "status", Short: "Print the version found and the version wanted", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateStatus(cmd) },
	}
	cmd.AddCommand(upCmd, down, status)
	return cmd
}

func (a *app) migrate(cmd *cobra.Command, req store.MigrateRequest, printSQL bool) error {
	st, err := openStore(&a.set)
	if err != nil {
		return err
	}
	defer st.close()
	if printSQL {
		return a.printSQL(st, req.Target)
	}
	ctx := cmd.Context()
	if err := reach(ctx, st); err != nil {
		return err
	}
	have, want, err := st.SchemaVersion(ctx)
	if err != nil {
		return fmt.Errorf("find the schema's version: %w", err)
	}
	if have > want {
		return &store.SchemaError{Schema: a.schemaName(), Have: have, Want: want}
	}
	req.Lanes = a.set.lanes
	steps, err := st.Migrate(ctx, req)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	answer := migrateAnswer{Have: have, Want: want, DryRun: req.DryRun, Steps: []migrateStep{}}
	for _, s := range steps {
		answer.Steps = append(answer.Steps, migrateStep{s.Version, s.Name, s.Down, s.Took.Seconds()})
	}
	return a.print(answer, func(w *tabwriter.Writer) { migrateText(w, answer) })
}

func migrateText(w *tabwriter.Writer, answer migrateAnswer) {
	if len(answer.Steps) == 0 {
		row(w, fmt.Sprintf("nothing to do: the schema is at version %d", answer.Have))
		return
	}
	for _, s := range answer.Steps {
		verb := "done"
		if answer.DryRun {
			verb = "would do"
		}
		direction := "up"
		if s.Down {
			direction = "down"
		}
		row(w, verb, direction, s.Version, s.Name)
	}
}

func (a *app) printSQL(st *opened, to int) error {
	from, target := 0, to
	switch to {
	case 0:
		target = st.newest
	case -1:
		from, target = st.newest, 0
	}
	text, err := st.SQL(from, target)
	if err != nil {
		return fmt.Errorf("print the statements: %w", err)
	}
	if a.set.output == "json" {
		return a.print(map[string]string{"sql": text}, nil)
	}
	_, err = fmt.Fprintln(a.out, text)
	return err
}

func (a *app) migrateStatus(cmd *cobra.Command) error {
	st, err := openStore(&a.set)
	if err != nil {
		return err
	}
	defer st.close()
	if err := reach(cmd.Context(), st); err != nil {
		return err
	}
	have, want, err := st.SchemaVersion(cmd.Context())
	if err != nil {
		return fmt.Errorf("find the schema's version: %w", err)
	}
	err = a.print(migrateAnswer{Have: have, Want: want, Steps: []migrateStep{}}, func(w *tabwriter.Writer) {
		row(w, "found", have)
		row(w, "wanted", want)
	})
	if err == nil && have != want {
		return &store.SchemaError{Schema: a.schemaName(), Have: have, Want: want}
	}
	return err
}

func (a *app) schemaName() string {
	if a.set.schema == "" {
		return "postrider"
	}
	return a.set.schema
}
