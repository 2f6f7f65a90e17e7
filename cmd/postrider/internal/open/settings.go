package open

import (
	"io"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/schema/registry"
)

// Settings say which store and which broker are meant, and how to reach them.
type Settings struct {
	Store, Broker, Pipe, Schema string
	MakePipe                    bool          // where it is missing; PostgreSQL refuses it
	Format                      string        // of routes that say none
	Routes                      []config.Rule // nil: every message goes to its topic
	Schemas                     string        // the folder of JSON Schemas that routes validate with; "": none
	Registry                    string        // the URL of the schema registry of routes with the format confluent; "": none
	Log                         *slog.Logger  // of a schema cache that cannot be used; nil: silent
	Invalid                     InvalidFunc   // is told of payloads where a route warns; nil: nobody is
	Wake                        string        // how a relay learns of messages; "": as the store's URL has it
	Lanes                       int           // of an outbox to be made; 0: the default
	PasswordFile                string
	PasswordCommand             string
	Stdout                      io.Writer // of the broker stdout:; nil: the process's
	Application                 string    // what the database calls our connections
	Pools                       *Pools    // of PostgreSQL, shared by the relays of a process; nil: one of its own

	frames *registry.Client // adds schema ids to routes; nil: nothing does
}

// InvalidFunc is told of a message whose payload breaks its schema, and the rule it has.
type InvalidFunc func(rule string, m *postrider.Message, err error)

// Flags declares what a user may set, and returns the names.
func (set *Settings) Flags(fs *pflag.FlagSet) []string {
	fs.StringVar(&set.Store, "store", "", "where the outbox is: "+forms(stores()))
	fs.StringVar(&set.PasswordFile, "store-password-file", "", "file with the password of the database, read again for each connection")
	fs.StringVar(&set.PasswordCommand, "store-password-command", "", "command that prints the password of the database, run for each connection")
	fs.StringVar(&set.Format, "format", "plain", "wire format of routes without one: plain, cloudevents, cloudevents-structured, debezium, raw or confluent")
	fs.StringVar(&set.Schemas, "schemas", "", "folder of schemas, SUBJECT/001.json, for routes that validate and the command schema")
	fs.StringVar(&set.Registry, "registry", "", "schema registry of the format confluent and of schema register: http[s]://[USER@]HOST[:PORT][/PATH][?password-file=FILE&token-file=FILE&tls-ca=FILE&cache=FILE]")
	fs.StringVar(&set.Broker, "broker", "", "where messages go: "+forms(brokers()))
	fs.StringVar(&set.Schema, "schema", "", "schema of the outbox on PostgreSQL (default: postrider)")
	fs.StringVar(&set.Pipe, "pipe", "", "the pipe: a named reader of the outbox (default: main)")
	return []string{"store", "store-password-file", "store-password-command", "broker", "format", "schemas", "registry", "schema", "pipe"}
}
