package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// TestActionsTemplate parses the workflow for users' projects: its commands, flags and
// settings exist, and its permissions are narrow. It does not run at GitHub here.
func TestActionsTemplate(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "github", "postrider.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var flow struct {
		Permissions map[string]string
		Jobs        map[string]struct {
			RunsOn string `yaml:"runs-on"`
			Steps  []struct {
				Uses, Run string
				Env       map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &flow); err != nil {
		t.Fatal(err)
	}
	if len(flow.Permissions) != 1 || flow.Permissions["contents"] != "read" {
		t.Errorf("permissions: %v, want to read contents only", flow.Permissions)
	}
	var ran []string
	for name, job := range flow.Jobs {
		if job.RunsOn == "" || len(job.Steps) == 0 {
			t.Errorf("job %s has no runner or no steps", name)
		}
		for _, s := range job.Steps {
			if s.Uses == "" && s.Run == "" || s.Uses != "" && !strings.Contains(s.Uses, "@v") {
				t.Errorf("job %s: the step %+v neither runs a command nor uses a version", name, s)
			}
			for line := range strings.Lines(s.Run) {
				args := strings.Fields(line)
				if args[0] != "postrider" {
					continue
				}
				cmd, rest, err := (&app{}).root().Find(args[1:])
				if err == nil {
					err = cmd.ParseFlags(rest)
				}
				if err == nil {
					err = cmd.ValidateArgs(cmd.Flags().Args())
				}
				if err != nil || !cmd.Runnable() {
					t.Errorf("job %s: %s: %v", name, line, err)
				}
				ran = append(ran, cmd.CommandPath())
			}
			for variable := range s.Env {
				setting := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(variable, "POSTRIDER_")), "_", "-")
				if !slices.Contains(known((&app{}).root()), setting) {
					t.Errorf("job %s: %s is no setting", name, variable)
				}
			}
		}
	}
	for _, want := range []string{"postrider migrate", "postrider schema check"} {
		if !slices.Contains(ran, want) {
			t.Errorf("the template does not run %s", want)
		}
	}
}
