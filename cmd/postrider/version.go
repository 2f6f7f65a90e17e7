package main

import (
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/output"
)

type versionAnswer struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the program's version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			return a.print(v, func(w *tabwriter.Writer) {
				output.Row(w, "version", v.Version)
				if v.Revision != "" {
					output.Row(w, "revision", v.Revision)
				}
				output.Row(w, "go", v.Go)
				output.Row(w, "platform", v.Platform)
			})
		},
	}
}

func buildVersion() versionAnswer {
	v := versionAnswer{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
