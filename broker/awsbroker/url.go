package awsbroker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/logging"

	"github.com/postrider/postrider/broker/internal/brokerurl"
	"github.com/postrider/postrider/internal/secret"
)

// Target is a URL of SQS or SNS, read.
type Target struct {
	Service  string // "sqs" or "sns"
	Region   string // "": the SDK's own, from AWS_REGION or the profile
	Endpoint string // "": the region's; otherwise an http or https URL
	Profile  string // of the SDK's configuration files; "": the SDK's own choice
	Role     string // ARN of a role to assume; "": none
	// KeyID and Secret are static credentials. Without them the SDK looks for some
	// as it always does: environment, profile, container, instance.
	KeyID  string
	Secret secret.Source

	Sink   SinkOptions   // the URL's settings of publishing
	Source SourceOptions // the URL's settings of receiving

	forSources string // a parameter of the URL that only a source takes; "": none
}

// ParseURL reads a URL such as
//
//	sqs://eu-west-1
//	sqs://eu-west-1?prefix=prod-&role=arn:aws:iam::123456789012:role/relay
//	sqs://KEYID:SECRET@us-east-1?endpoint=http://127.0.0.1:9324
//	sns://eu-west-1?account=123456789012
//
// The host is the region; default is the SDK's own (AWS_REGION or the profile's). The
// parameters are
//
//	type=fifo|standard     the kind of the queues; fifo without it
//	prefix=P               stands before every queue's name
//	account=ID             the queues' account, if it is another one; SNS always needs it
//	endpoint=URL           the service's address, for VPC endpoints and emulators; that of STS is AWS_ENDPOINT_URL_STS
//	role=ARN               assume this role
//	profile=NAME           of the SDK's configuration files
//	visibility=DURATION    of what a source receives; 30s without it; not with sns://, nor for a sink
//	wait=DURATION          how long a source's poll waits, up to 20s; 20s without it; not with sns://
//	window=N               requests at once; 32 without it
//	max-message-bytes=N    the MaximumMessageSize, if it is not 1 MiB (queues) or 256 KiB (topics)
//	password-file, password-env: the secret of KEYID
//
// Without KEYID the credentials are those that the SDK finds. ParseURL reads files
// of secrets once and does no other I/O. Errors do not repeat the URL.
func ParseURL(raw string) (t Target, err error) { return t, t.read(raw) }

// read adds the URL's settings to the options that t has.
func (t *Target) read(raw string) error {
	params := []string{"type", "prefix", "account", "endpoint", "role", "profile", "window", "max-message-bytes"}
	if !strings.HasPrefix(raw, "sns:") {
		params = append(params, "visibility", "wait")
	}
	u, err := brokerurl.Parse(raw, brokerurl.Spec{Schemes: map[string]bool{"sqs": false, "sns": false}, Params: params})
	if err == nil {
		err = t.place(u)
	}
	if err == nil {
		err = t.options(u)
	}
	if err != nil {
		return fmt.Errorf("awsbroker: parse URL: %w", err)
	}
	return nil
}

func (t *Target) place(u *brokerurl.URL) error {
	if len(u.Hosts) != 1 {
		return errors.New("the host must be one region, or default")
	}
	if t.Region = u.Hosts[0]; t.Region == "default" {
		t.Region = ""
	}
	t.Service = u.Scheme
	t.Endpoint, t.Role, t.Profile = u.Param("endpoint"), u.Param("role"), u.Param("profile")
	t.KeyID, t.Secret = u.User, u.Password
	switch {
	case u.TLS != nil:
		return errors.New("the endpoint's scheme decides about TLS; set AWS_CA_BUNDLE for a private authority")
	case (t.KeyID == "") != (t.Secret == nil):
		return errors.New("an access key has two parts: write KEYID:SECRET@REGION, add password-file or password-env, or give neither")
	case t.KeyID != "" && t.Profile != "":
		return errors.New("conflicting credentials in URL: use an access key or profile")
	}
	if t.Role != "" {
		if a, err := arn.Parse(t.Role); err != nil || a.Service != "iam" || !strings.HasPrefix(a.Resource, "role/") {
			return errors.New("role must be the ARN of a role, which STS needs, such as arn:aws:iam::123456789012:role/relay")
		}
	}
	if t.Endpoint != "" {
		if e, err := url.Parse(t.Endpoint); err != nil || e.Host == "" || e.Scheme != "http" && e.Scheme != "https" {
			return errors.New("endpoint must be a URL that begins with http:// or https://")
		}
	}
	return nil
}

func (t *Target) options(u *brokerurl.URL) error {
	if u.Has("prefix") {
		t.Sink.Prefix, t.Source.Prefix = u.Param("prefix"), u.Param("prefix")
	}
	if u.Has("account") {
		t.Sink.Account, t.Source.Account = u.Param("account"), u.Param("account")
	}
	if u.Has("type") {
		kind := u.Param("type")
		if kind != "fifo" && kind != "standard" {
			return errors.New("type must be fifo or standard")
		}
		t.Sink.Standard, t.Source.Standard = kind == "standard", kind == "standard"
	}
	for name, field := range map[string]*int{"window": &t.Sink.Window, "max-message-bytes": &t.Sink.MaxMessageBytes} {
		if !u.Has(name) {
			continue
		}
		n, err := strconv.Atoi(u.Param(name))
		if err != nil || n < 1 || n > mostBytes {
			return fmt.Errorf("%s must be a number from 1 to %d", name, mostBytes)
		}
		*field = n
	}
	for name, field := range map[string]*time.Duration{"visibility": &t.Source.Visibility, "wait": &t.Source.Wait} {
		if !u.Has(name) {
			continue
		}
		d, err := time.ParseDuration(u.Param(name))
		if err != nil || d < time.Second {
			return fmt.Errorf("%s must be a duration of at least 1s, such as 30s", name)
		}
		*field, t.forSources = d, name
	}
	return nil
}

// Config returns the SDK's configuration for the target. It reads the SDK's files;
// credentials are fetched by the first request.
func (t *Target) Config(ctx context.Context) (aws.Config, error) {
	// The SDK's own lines would stand in the program's log in another form.
	opts := []func(*config.LoadOptions) error{config.WithLogger(logging.Nop{})}
	if t.Region != "" {
		opts = append(opts, config.WithRegion(t.Region))
	}
	if t.Profile != "" {
		opts = append(opts, config.WithSharedConfigProfile(t.Profile))
	}
	if t.KeyID != "" {
		opts = append(opts, config.WithCredentialsProvider(aws.NewCredentialsCache(aws.CredentialsProviderFunc(t.static))))
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("awsbroker: read the SDK's configuration: %w", err)
	}
	if cfg.Region == "" {
		return aws.Config{}, errors.New("awsbroker: no region: write it into the URL, or set AWS_REGION")
	}
	if t.Role != "" {
		cfg.Credentials = aws.NewCredentialsCache(stscreds.NewAssumeRoleProvider(sts.NewFromConfig(cfg, func(o *sts.Options) {
			o.Retryer = aws.NopRetryer{} // as once
		}), t.Role))
	}
	if t.Endpoint != "" { // last, and no option above: the requests for credentials have endpoints of their own
		cfg.BaseEndpoint = aws.String(t.Endpoint)
	}
	return cfg, nil
}

// queues is a client of SQS. The URL's endpoint counts, not AWS_ENDPOINT_URL_SQS.
func (t *Target) queues(cfg aws.Config) *sqs.Client {
	return sqs.NewFromConfig(cfg, func(o *sqs.Options) {
		if t.Endpoint != "" {
			o.BaseEndpoint = aws.String(t.Endpoint)
		}
	})
}

// topics is a client of SNS, as queues is one of SQS.
func (t *Target) topics(cfg aws.Config) *sns.Client {
	return sns.NewFromConfig(cfg, func(o *sns.Options) {
		if t.Endpoint != "" {
			o.BaseEndpoint = aws.String(t.Endpoint)
		}
	})
}

// secretFor is how long a secret from a file or a variable is used before it is read again.
const secretFor = time.Minute

func (t *Target) static(ctx context.Context) (aws.Credentials, error) {
	text, err := t.Secret(ctx)
	if err != nil {
		return aws.Credentials{}, err
	}
	return aws.Credentials{AccessKeyID: t.KeyID, SecretAccessKey: text, Source: "URL", CanExpire: true, Expires: time.Now().Add(secretFor)}, nil
}

// connect returns the SDK's configuration with connections of its own, and what drops the
// idle ones.
func (t *Target) connect() (aws.Config, func(), error) {
	cfg, err := t.Config(context.Background()) //nolint:forbidigo // it reads files
	if err != nil {
		return aws.Config{}, nil, err
	}
	transport := awshttp.NewBuildableClient().WithTransportOptions(func(tr *http.Transport) {
		tr.MaxIdleConnsPerHost = 128
	}).GetTransport()
	// A client of the SDK's own type would build a transport that cannot be reached from here.
	cfg.HTTPClient = &http.Client{Transport: bodies{transport}}
	return cfg, transport.CloseIdleConnections, nil
}
