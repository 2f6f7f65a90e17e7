package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// tenants is a file with the relays shop, its second entry of the same pipe, and mail;
// of mail's outbox there is no schema until it is migrated.
func tenants(t *testing.T, more string) (file string) {
	t.Helper()
	dir := t.TempDir()
	file = filepath.Join(dir, "p.yml")
	text := more + fmt.Sprintf("relays:\n  - {name: shop, store: 'sqlite:%[1]s/shop.db'}\n  - {name: mail, store: 'sqlite:%[1]s/mail.db'}\n", dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	mustCLI(t, "", "migrate", "-c", file, "--relay", "shop")
	return file
}

// Status and migrate status are about every outbox of the file, and one that cannot be
// looked at does not hide the others.
func TestStatusOfEveryOutboxOfTheFile(t *testing.T) {
	file := tenants(t, "")
	for _, command := range []string{"status", "migrate status"} {
		args := append(strings.Fields(command), "-c", file)
		got := cli(t, nil, "", args...)
		if got.code != exit.Schema || !strings.Contains(got.out, "relay shop:\n") || !strings.Contains(got.err, "relay mail: ") {
			t.Errorf("%s: exit code %d\n%s%s", command, got.code, got.out, got.err)
		}
	}
	mustCLI(t, "", "migrate", "-c", file)
	for _, command := range []string{"status", "migrate status"} {
		out := mustCLI(t, "", append(strings.Fields(command), "-c", file)...)
		if strings.Index(out, "relay shop:\n") != 0 || !strings.Contains(out, "\nrelay mail:\n") {
			t.Errorf("%s says\n%s", command, out)
		}
		dec, names := json.NewDecoder(strings.NewReader(mustCLI(t, "", append(strings.Fields(command), "-c", file, "-o", "json")...))), ""
		for dec.More() {
			var one struct{ Relay string }
			if err := dec.Decode(&one); err != nil {
				t.Fatal(err)
			}
			names += one.Relay + " "
		}
		if names != "shop mail " {
			t.Errorf("%s: objects of %q", command, names)
		}
	}
	if out := mustCLI(t, "", "status", "-c", file, "--relay", "mail"); strings.Contains(out, "relay shop") {
		t.Errorf("--relay mail: %s", out)
	}
}

// A command that works on one outbox says how to choose another one of the file.
func TestCommandsNameTheOtherOutboxes(t *testing.T) {
	const choose = "--relay (shop, mail)"
	commands := [][]string{
		{"dead", "list"}, {"enqueue"}, {"doctor"},
	}
	alone := tenants(t, "")
	top := "sqlite:" + filepath.Join(t.TempDir(), "top.db")
	mustCLI(t, "", "migrate", "--store", top)
	both := tenants(t, "store: '"+top+"'\n")
	for _, args := range commands {
		if got := cli(t, nil, "", append(args, "-c", alone)...); got.code != exit.Usage || !strings.Contains(got.err, "choose one with "+choose) {
			t.Errorf("%v without a store: exit code %d, %s", args, got.code, got.err)
		}
		if got := cli(t, nil, "", append(args, "-c", both)...); got.code == exit.Usage || !strings.Contains(got.err, "choose another with "+choose) {
			t.Errorf("%v with a store: exit code %d, %s", args, got.code, got.err)
		}
		if got := cli(t, nil, "", append(args, "-c", both, "--relay", "shop")...); strings.Contains(got.err, choose) {
			t.Errorf("%v with --relay: %s", args, got.err)
		}
	}
}

func TestAnUnknownCommandIsAnsweredWithANearOne(t *testing.T) {
	for typed, want := range map[string]string{"stauts": "did you mean `postrider status`?", "migrate dwon": "did you mean `postrider migrate down`?"} {
		if got := cli(t, nil, "", strings.Fields(typed)...); got.code != exit.Usage || !strings.Contains(got.err, want) {
			t.Errorf("%s: exit code %d, %s", typed, got.code, got.err)
		}
	}
	if got := cli(t, nil, "", "hunter2"); strings.Contains(got.err, "did you mean") {
		t.Error(got.err)
	}
}

func TestOneWarning(t *testing.T) {
	if one, two := answer.Warnings(1), answer.Warnings(2); one != "1 warning" || two != "2 warnings" {
		t.Errorf("%q, %q", one, two)
	}
}

// The help groups every command that it shows by what a person wants.
func TestHelpGroupsCommands(t *testing.T) {
	root := (&app{}).root()
	for _, c := range root.Commands() {
		if c.GroupID == "" && !c.Hidden && c.Name() != "version" {
			t.Errorf("%s is in no group", c.Name())
		}
	}
	help, last := mustCLI(t, "", "--help"), -1
	for _, title := range []string{"Carry messages:\n", "Look:\n", "Act:\n", "Set up:\n"} {
		at := strings.Index(help, title)
		if at <= last {
			t.Errorf("%q is missing, or before the group above it:\n%s", title, help)
		}
		last = at
	}
}
