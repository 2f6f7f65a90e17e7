package pubsubbroker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/postrider/postrider/broker/internal/brokerurl"
)

// emulatorHost is the variable that names an emulator to all of Google's clients.
const emulatorHost = "PUBSUB_EMULATOR_HOST"

// Target is a Pub/Sub URL, read.
type Target struct {
	Project  string
	Endpoint string // host:port; "": the global one
	Emulator string // host:port, without TLS and credentials; "": PUBSUB_EMULATOR_HOST, if that is set

	Sink   SinkOptions   // the URL's settings of publishing
	Source SourceOptions // the URL's settings of receiving

	forSources string // a parameter of the URL that only a source takes; "": none
}

// ParseURL reads a URL such as
//
//	pubsub://my-project
//	pubsub://my-project?endpoint=europe-west1-pubsub.googleapis.com:443
//	pubsub://my-project?emulator=127.0.0.1:8085
//
// The parameters are
//
//	endpoint=HOST:PORT     a regional endpoint: only there Pub/Sub keeps a key's order
//	                       when publishers are in several regions
//	emulator=HOST:PORT     an emulator, without TLS and credentials; PUBSUB_EMULATOR_HOST
//	                       without it
//	prefix=P               stands before every topic and subscription
//	window=N               requests at once; 64 without it
//	deadline=DURATION      for how long a source holds what it received; 60s without it; not for a sink
//
// The credentials are those that Google's client finds. Errors do not repeat the URL.
func ParseURL(raw string) (t Target, err error) { return t, t.read(raw) }

// read adds the URL's settings to the options that t has.
func (t *Target) read(raw string) error {
	u, err := brokerurl.Parse(raw, brokerurl.Spec{
		Schemes: map[string]bool{"pubsub": false}, Params: []string{"endpoint", "emulator", "prefix", "window", "deadline"},
	})
	if err == nil {
		err = t.place(u)
	}
	if err == nil {
		err = t.options(u)
	}
	if err != nil {
		return fmt.Errorf("pubsubbroker: parse URL: %w", err)
	}
	return nil
}

func (t *Target) place(u *brokerurl.URL) error {
	switch {
	case len(u.Hosts) != 1:
		return errors.New("the host must be one project")
	case u.User != "" || u.Password != nil:
		return errors.New("a URL has no credentials: set GOOGLE_APPLICATION_CREDENTIALS to a file")
	case u.TLS != nil:
		return errors.New("TLS is always on, except with emulator")
	case u.Has("endpoint") && u.Has("emulator"):
		return errors.New("use endpoint or emulator")
	case u.Has("endpoint") && os.Getenv(emulatorHost) != "": // Google's client would dial the endpoint without TLS and credentials
		return errors.New("endpoint conflicts with the variable " + emulatorHost + ": unset the variable")
	}
	t.Project, t.Endpoint, t.Emulator = u.Hosts[0], u.Param("endpoint"), u.Param("emulator")
	for _, name := range []string{"endpoint", "emulator"} {
		if !u.Has(name) {
			continue
		}
		if host, port, err := net.SplitHostPort(u.Param(name)); err != nil || host == "" || port == "" {
			return fmt.Errorf("%s must be HOST:PORT", name)
		}
	}
	t.Sink.Project, t.Source.Project = t.Project, t.Project
	return nil
}

func (t *Target) options(u *brokerurl.URL) error {
	if u.Has("prefix") {
		t.Sink.Prefix, t.Source.Prefix = u.Param("prefix"), u.Param("prefix")
	}
	if u.Has("window") {
		n, err := strconv.Atoi(u.Param("window"))
		if err != nil || n < 1 || n > mostWindow {
			return fmt.Errorf("window must be a number from 1 to %d", mostWindow)
		}
		t.Sink.Window = n
	}
	if u.Has("deadline") {
		d, err := time.ParseDuration(u.Param("deadline"))
		if err != nil || d < leastDeadline || d > mostDeadline {
			return fmt.Errorf("deadline must be a duration from %v to %v", leastDeadline, mostDeadline)
		}
		t.Source.Deadline, t.forSources = d, "deadline"
	}
	return nil
}

// ClientOptions returns the options with which Google's clients reach the target.
func (t *Target) ClientOptions() []option.ClientOption {
	reconnect := grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}, MinConnectTimeout: 5 * time.Second,
	})
	opts := []option.ClientOption{option.WithGRPCDialOption(reconnect)}
	emulator := t.Emulator
	if emulator == "" && t.Endpoint == "" {
		emulator = os.Getenv(emulatorHost)
	}
	switch {
	case emulator != "":
		opts = append(opts, option.WithEndpoint(emulator), option.WithoutAuthentication(), option.WithTelemetryDisabled(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	case t.Endpoint != "":
		opts = append(opts, option.WithEndpoint(t.Endpoint))
	}
	return opts
}

func (t *Target) publisher(ctx context.Context) (*pubsub.TopicAdminClient, error) {
	return pubsub.NewTopicAdminClient(ctx, t.ClientOptions()...)
}

func (t *Target) subscriber(ctx context.Context) (*pubsub.SubscriptionAdminClient, error) {
	return pubsub.NewSubscriptionAdminClient(ctx, t.ClientOptions()...)
}
