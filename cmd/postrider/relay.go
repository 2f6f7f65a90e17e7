package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/daemon"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
)

func (a *app) relayCommand() *cobra.Command {
	l := &a.set.listener
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Deliver the outbox to the broker until interrupted",
		Long: "Any number of relays share the lanes of an outbox. An unreachable database or broker is\n" +
			"reported once and waited for; the broker is asked at the start and every 30 s while no\n" +
			"message shows that it answers. The first SIGTERM drains, the second one exits at once.\n\n" +
			"A file may name several relays, each with a database, schema, pipe and broker of its own; what\n" +
			"is outside of the list is their default, and they share one process and one listener:\n" +
			"  broker: nats://localhost:4222\n" +
			"  relays:\n" +
			"    - name: shop\n" +
			"      store: postgres://db1/shop\n" +
			"    - name: audit\n" +
			"      store: postgres://db1/shop\n" +
			"      pipe: audit\n\n" +
			"On --listen: /healthz (the event loop moves), /readyz (leases are fresh, database\n" +
			"and broker answer, some destination works), /metrics (Prometheus).\n\n" +
			"Brokers:\n" +
			open.BrokerHelp() +
			"  Kafka, NATS, RabbitMQ, Redis, SQS and SNS take password-file=FILE or password-env=NAME in place of the\n" +
			"  password, the first four also tls=true, tls-ca=FILE, tls-cert=FILE&tls-key=FILE and tls-server-name=NAME.\n" +
			"  Files are read again for each new connection: a rotation needs no restart",
		Example: "  postrider relay --store sqlite:shop.db --broker nats://localhost:4222\n" +
			"  POSTRIDER_STORE=postgres://relay:secret@db/shop postrider relay --broker kafka://k1:9092,k2:9092",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runRelay(cmd.Context()) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&l.Address, "listen", daemon.DefaultListen, `address of /healthz, /readyz and /metrics; "" for none`)
	fs.BoolVar(&l.Remote, "listen-remote", false, "allow an address that other machines reach; there is no authentication")
	fs.DurationVar(&l.StatusEvery, "status-every", 5*time.Second, "how old the lag of /metrics may be")
	config.MarkAll(fs, "listen", "listen-remote", "status-every")
	a.set.relay.Flags(fs)
	return cmd
}

func (a *app) runRelay(ctx context.Context) error {
	p, err := a.process()
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// process is what the command relay runs.
func (a *app) process() (*daemon.Process, error) {
	entries, sets, err := a.unitSettings()
	if err != nil {
		return nil, err
	}
	p := &daemon.Process{Listener: a.set.listener, Logger: a.logger(), LookupEnv: a.lookupEnv, Version: buildVersion().Version}
	for i, set := range sets {
		p.Relays = append(p.Relays, daemon.Relay{Name: entries[i].Name, Where: entries[i].Where, Open: &set.Settings, Engine: &set.relay})
	}
	return p, nil
}
