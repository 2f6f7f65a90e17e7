package awsbroker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// credentials marks the errors of a provider as [credentialsError]. Without the mark
// the answer of STS to AssumeRole looks like an answer of SQS to the request that
// needed the credentials.
type credentials struct{ aws.CredentialsProvider }

// Retrieve implements [aws.CredentialsProvider]. The end of the caller's context is no
// fault of the credentials and is not marked.
func (c *credentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	found, err := c.CredentialsProvider.Retrieve(ctx)
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		err = &credentialsError{err}
	}
	return found, err
}

// IsCredentialsProvider implements [aws.CredentialProviderComparator]: the SDK does not
// sign requests with anonymous credentials.
func (c *credentials) IsCredentialsProvider(target aws.CredentialsProvider) bool {
	return aws.IsCredentialsProvider(c.CredentialsProvider, target)
}

// renew drops credentials that the service has rejected from the SDK's cache, so that the
// next request fetches others: a role's session may have been revoked, or a key replaced.
// Without it the rejected ones are used until they expire.
func renew(signed aws.CredentialsProvider) {
	if cache, ok := signed.(*aws.CredentialsCache); ok {
		cache.Invalidate()
	}
}

// credentialsError reports that there are no credentials to sign a request with. The
// request was not sent.
type credentialsError struct{ err error }

func (e *credentialsError) Error() string { return e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }

// passes reports whether the credentials were missing because their service could
// not be reached or was busy: waiting helps.
func (e *credentialsError) passes() bool {
	var (
		network net.Error
		resp    *smithyhttp.ResponseError
		api     smithy.APIError
	)
	switch {
	case errors.As(e.err, &network):
		return true
	case errors.As(e.err, &resp) && resp.HTTPStatusCode() >= http.StatusInternalServerError:
		return true
	}
	return errors.As(e.err, &api) && strings.HasPrefix(api.ErrorCode(), "Throttling")
}

// unreached reports whether the service that gives credentials did not answer.
func (e *credentialsError) unreached() bool {
	var (
		network net.Error
		api     smithy.APIError
	)
	return errors.As(e.err, &network) && !errors.As(e.err, &api)
}

// what names the problem.
func (e *credentialsError) what() string {
	if e.unreached() {
		return "the service of credentials cannot be reached"
	}
	return "no usable credentials"
}

const setCredentials = "set AWS_ACCESS_KEY_ID, a profile or a role, or write them into the URL"

// remedy is the fix that the error's text ends with.
func (e *credentialsError) remedy() string {
	if e.unreached() {
		return "check that this host reaches the service that gives credentials (AWS_ENDPOINT_URL_STS, VPC endpoint, firewall); credentials may be right"
	}
	if api := smithy.APIError(nil); errors.As(e.err, &api) {
		return "correct the role, its trust policy or the credentials that assume it"
	}
	return setCredentials
}
