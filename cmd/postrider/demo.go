package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/demo"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/examples/orders"
)

// liveRate is how many orders per second a person can follow.
const liveRate = 10

func (a *app) demoCommand() *cobra.Command {
	o := demo.Options{ErrOut: a.errOut}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a demo: orders are delivered while the relay is killed",
		Long: "Starts a shop, a relay and a warehouse as processes of their own, with SQLite and a broker\n" +
			"inside this process, places orders, kills the relay with SIGKILL while messages are under\n" +
			"way, and counts at the end what the order table, the broker and the stock table hold.\n" +
			"The broker does not deduplicate: duplicates are real, and the inbox makes each count once.\n" +
			"--store and --broker run the same on PostgreSQL or MySQL and on Kafka, NATS, RabbitMQ, Redis, Pub/Sub or\n" +
			"SQS, whose FIFO queues drop the duplicates themselves, or with\n" +
			"http://127.0.0.1:PORT/PATH with webhooks to an endpoint that the demo opens there. Only flags\n" +
			"count: the database and the broker of the environment and of the file are left alone.\n\n" +
			"With --console you watch and act in a browser instead: kill the relay by a button, find the\n" +
			"dead letter of an order that the broker rejects, raise the limit, retry it. Ctrl-C counts.\n\n" +
			"Exits with 1 unless nothing was lost, invented, reordered or applied twice.",
		Example: "  postrider demo\n  postrider demo --console\n  postrider demo --orders 5000 --kill 20 --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// What the environment or a file names holds the user's own messages.
			for name, to := range map[string]*string{"store": &o.Store, "broker": &o.Broker} {
				if a.typed[name] {
					*to = cmd.Flags().Lookup(name).Value.String()
				}
			}
			if o.Console {
				for _, name := range []string{"orders", "kill"} {
					if cmd.Flags().Changed(name) {
						return exit.Usagef("--%s has no effect with --console: orders are placed until Ctrl-C, and a button kills the relay", name)
					}
				}
				if !cmd.Flags().Changed("rate") {
					o.Rate = liveRate
				}
			}
			o.Answer, o.Logger, o.Actor = a.printer(), a.logger(), a.actor()
			return demo.Run(cmd.Context(), o)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&o.Orders, "orders", 600, "orders to place; each makes three messages")
	fs.IntVar(&o.Rate, "rate", 60, "orders per second")
	fs.IntVar(&o.Kills, "kill", 3, "how often the relay is killed")
	fs.BoolVar(&o.Console, "console", false, fmt.Sprintf("serve the console on 127.0.0.1 and place %d orders per second until Ctrl-C", liveRate))
	fs.BoolVar(&o.Keep, "keep", false, "keep the files of the run and print where they are")
	return cmd
}

// ordersCommand is the shop's process.
func (a *app) ordersCommand() *cobra.Command {
	p := demo.Part{Out: a.out}
	cmd := &cobra.Command{
		Use: "demo-orders", Short: "The shop of the demo", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.Store, p.Schema, p.Logger, p.LookupEnv = a.set.Store, a.set.Schema, a.logger(), a.lookupEnv
			return demo.Shop(cmd.Context(), p)
		},
	}
	cmd.Flags().StringVar(&p.Topic, "topic", orders.Topic, "topic of the messages")
	cmd.Flags().DurationVar(&p.Pause, "pause", 0, "each transaction stays open up to this long")
	return cmd
}

// warehouseCommand is the warehouse's process.
func (a *app) warehouseCommand() *cobra.Command {
	p := demo.Part{Out: a.out}
	cmd := &cobra.Command{
		Use: "demo-warehouse", Short: "The warehouse of the demo", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.Store, p.Schema, p.Broker, p.Logger, p.LookupEnv = a.set.Store, a.set.Schema, a.set.Broker, a.logger(), a.lookupEnv
			return demo.Warehouse(cmd.Context(), p)
		},
	}
	cmd.Flags().StringVar(&p.Topic, "topic", orders.Topic, "topic of the messages")
	return cmd
}
