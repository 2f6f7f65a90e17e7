package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/desk"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/console"
)

func (a *app) consoleCommand() *cobra.Command {
	var (
		set       desk.Settings
		consumers []string
	)
	cmd := &cobra.Command{
		Use: "console", Short: "Serve pages that show an outbox and act on it",
		Long: "Serve pages that show what is stuck, why, and the act that repairs it. The pages need no\n" +
			"JavaScript, and each shows the command that does the same. With a file that lists relays, every\n" +
			"outbox of the list is served.\n\n" +
			"Consumers are shown from the outbox's own database. Where they have another one, name it with\n" +
			"--consumers.\n\n" +
			"On 127.0.0.1 every user of this machine has the role of --role. Any other address needs\n" +
			"authentication: --tokens, which needs --tls-cert and --tls-key, or --proxy, for a proxy that\n" +
			"authenticates people and names them in a header. Behind a proxy TLS is optional.\n\n" +
			"A viewer sees everything but payloads and headers. The role payload reads these too, and the\n" +
			"journal records each read. An operator acts and sees no payload. An admin does all of this and\n" +
			"removes pipes.",
		Example: "  postrider console --store postgres://operator@db1/shop\n" +
			"  postrider console --listen :9465 --tokens tokens.txt --tls-cert cert.pem --tls-key key.pem\n" +
			"  postrider console --store postgres://operator@db1/shop --consumers postgres://operator@db2/billing",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runConsole(cmd.Context(), set, consumers) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&set.Listen, "listen", desk.DefaultListen, "address of the pages")
	fs.StringVar(&set.Role, "role", string(console.Operator), "role of every user without --tokens and --proxy: viewer, payload, operator or admin")
	fs.StringVar(&set.Tokens, "tokens", "", "file of tokens, one per line, made by the command console token")
	fs.StringVar(&set.TLSCert, "tls-cert", "", "file with the certificate")
	fs.StringVar(&set.TLSKey, "tls-key", "", "file with the key of the certificate")
	fs.StringArrayVar(&consumers, "consumers", nil, "database of the consumers: a URL as for --store, or RELAY=URL for an outbox of the file's list; repeatable")
	fs.StringSliceVar(&set.Proxies, "proxy", nil, "network of the proxy that authenticates people, such as 10.0.0.7/32")
	fs.StringVar(&set.ProxySecretFile, "proxy-secret-file", "", "file with the secret that the proxy sends as X-Postrider-Proxy-Secret")
	fs.StringVar(&set.ProxyUserHeader, "proxy-user-header", "X-Forwarded-User", "header in which the proxy names the user")
	fs.StringVar(&set.ProxyGroupHeader, "proxy-groups-header", "X-Forwarded-Groups", "header in which the proxy lists the user's groups")
	fs.StringSliceVar(&set.ProxyRoles, "proxy-role", nil, "GROUP=ROLE of the proxy's users; the group * is every user")
	cmd.AddCommand(a.tokenCommand())
	return cmd
}

func (a *app) tokenCommand() *cobra.Command {
	var (
		role    string
		expires time.Duration
	)
	cmd := &cobra.Command{
		Use: "token NAME", Short: "Make a person's token and its line for the file of tokens",
		Long: "Make a token with which a person signs in. The token is printed once; the line for the file of\n" +
			"--tokens holds only its hash. Removing the line ends the person's sessions.",
		Example: "  postrider console token ann --role operator --expires 2160h",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" || strings.ContainsAny(args[0], " \t\n#") {
				return exit.Usagef("give the name of one person, without spaces: the journal keeps it")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := console.ParseRole(role)
			if err != nil {
				return exit.Usagef("%v", err)
			}
			if expires < 0 {
				return exit.Usagef("expires is %s: it must not be negative", expires)
			}
			var until time.Time
			if expires > 0 {
				until = time.Now().Add(expires)
			}
			token, line := desk.NewToken(args[0], r, until)
			answer := struct {
				Token string `json:"token"`
				Line  string `json:"line"`
			}{token, line}
			return a.print(answer, func(w *tabwriter.Writer) {
				output.Row(w, "token, for "+args[0], token)
				output.Row(w, "line, for the file", line)
			})
		},
	}
	cmd.Flags().StringVar(&role, "role", string(console.Viewer), "viewer, payload, operator or admin")
	cmd.Flags().DurationVar(&expires, "expires", 90*24*time.Hour, "how long the token is valid; 0: until its line is removed")
	return cmd
}

func (a *app) runConsole(ctx context.Context, set desk.Settings, consumers []string) error {
	set.Actor, set.Logger = a.actor(), a.logger()
	d, err := desk.New(set)
	if err != nil {
		return err
	}
	outboxes, done, err := a.consoleOutboxes(consumers)
	if err != nil {
		return err
	}
	defer done()
	opts := d.Options()
	c := console.New(outboxes, &opts)
	if err := c.Check(); err != nil {
		return exit.With(exit.Usage, err)
	}
	defer c.Close()
	address, err := d.Start(c)
	if err != nil {
		return err
	}
	defer d.Stop()
	fmt.Fprintf(a.errOut, "console: %s (ends with Ctrl-C)\n", address)
	c.Run(ctx)
	return nil
}

// consoleOutboxes opens the outbox that is chosen, or those of the file's list, each with
// the database of its consumers.
func (a *app) consoleOutboxes(consumers []string) (all []console.Outbox, done func(), err error) {
	apart, err := a.consumersApart(consumers)
	if err != nil {
		return nil, nil, err
	}
	var closers []func()
	done = func() {
		for _, c := range closers {
			c()
		}
	}
	failed, _, err := a.each(false, func(one *app) error {
		st, err := open.Store(&one.set.Settings)
		if err != nil {
			return err
		}
		closers = append(closers, st.Close)
		if st.Exists != nil {
			if err := st.Exists(); err != nil {
				return err
			}
		}
		o := console.Outbox{Name: consoleName(one.entry, one.set.Store, len(all)), Store: st.Store, Office: st.Office}
		o.Flags = one.consoleFlags()
		entry := cmp.Or(one.entry, one.relayName)
		if at, ok := apart[entry]; ok {
			delete(apart, entry)
			set := open.Settings{Store: at, Application: one.set.Application}
			i, err := open.Inboxes(&set)
			if err != nil {
				return fmt.Errorf("consumers: %w", err)
			}
			closers = append(closers, i.Close)
			o.Consumers, o.ConsumerFlags = &i.Inboxes, "--store STORE"
		} else if i, ok := open.InboxesOf(st, &one.set.Settings); ok {
			o.Consumers = &i
		}
		all = append(all, o)
		return nil
	})
	if err == nil && len(failed) > 0 {
		err = failed[0]
	}
	for entry := range apart { // entries of one outbox are served once
		if err == nil {
			err = exit.Usagef("--consumers names relay %q, whose outbox the console serves under another relay of the file: name the first one with its store", entry)
		}
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return all, done, nil
}

// consoleFlags are what a command in a shell needs to reach the outbox that this console shows. A
// URL that was given as a flag is not repeated, since it may hold a password. Pages add the pipe.
func (a *app) consoleFlags() string {
	var words []string
	add := func(flag, value string) { words = append(words, "--"+flag, value) }
	quoted := func(text string) string {
		const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./"
		if strings.Trim(text, plain) == "" {
			return text
		}
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	if a.typed["config"] {
		add("config", quoted(a.configFile))
	}
	relay := cmp.Or(a.entry, a.relayName)
	if relay != "" {
		add("relay", quoted(relay))
	}
	if a.typed["store"] {
		add("store", "STORE")
	}
	if a.set.Schema != "" && (relay == "" || a.typed["schema"]) {
		add("schema", quoted(a.set.Schema))
	}
	return strings.Join(words, " ")
}

// consumersApart returns the databases of --consumers by the entry of the file's list, ""
// without a list.
func (a *app) consumersApart(values []string) (map[string]string, error) {
	apart := make(map[string]string, len(values))
	for _, v := range values {
		entry, at := cmp.Or(a.entry, a.relayName), v
		if a.several() && entry == "" {
			var named bool
			if entry, at, named = strings.Cut(v, "="); !named || entry == "" || strings.Contains(entry, ":") {
				return nil, exit.Usagef("--consumers names no relay: the file lists several outboxes: give RELAY=URL")
			}
			if !slices.ContainsFunc(a.relays, func(r config.Relay) bool { return r.Name == entry }) {
				return nil, exit.Usagef("--consumers names relay %q, which the file does not list", entry)
			}
		}
		if _, twice := apart[entry]; twice {
			return nil, exit.Usagef("--consumers is given twice for one outbox")
		}
		apart[entry] = at
	}
	return apart, nil
}

// consoleName is how pages call an outbox: its entry in the file, or its database.
func consoleName(entry, store string, n int) string {
	name := entry
	if name == "" { // the path holds no password
		if u, err := url.Parse(store); err == nil {
			name = strings.TrimSuffix(path.Base(u.Path+u.Opaque), ".db")
		}
	}
	name = strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == '.' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '-'
	}, name)
	if name = strings.Trim(name, "-_."); name == "" {
		return fmt.Sprintf("outbox%d", n+1)
	}
	return name[:min(len(name), 63)]
}
