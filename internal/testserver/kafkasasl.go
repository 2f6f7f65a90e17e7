package testserver

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// sasl is a second listener of Kafka, for authenticated clients.
type sasl struct {
	ca    *CA
	plain map[string]string
}

// WithSASL gives a Kafka broker a second listener, [Kafka.Secure]: TLS with a
// certificate of ca for 127.0.0.1, SASL PLAIN for the users in plain, by name and
// password, and SCRAM for users that a test creates. Users there may do nothing without
// an ACL. The first listener needs no login and allows everything.
func WithSASL(ca *CA, plain map[string]string) Option {
	return func(o *options) { o.sasl = &sasl{ca: ca, plain: plain} }
}

// kafka writes the listener's files and returns its lines of the configuration.
func (s *sasl) kafka(h *home, plain, secure string, controller int) ([]string, error) {
	cert, key, err := s.ca.Issue("kafka", "127.0.0.1")
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(s.ca.File)
	if err != nil {
		return nil, err
	}
	store, err := h.write("kafka.pem", []string{string(key) + string(cert)})
	if err != nil {
		return nil, err
	}
	trust, err := h.write("ca.pem", []string{string(authority)})
	if err != nil {
		return nil, err
	}
	login := "org.apache.kafka.common.security.plain.PlainLoginModule required"
	var users []string
	for user, password := range s.plain {
		users = append(users, fmt.Sprintf(" user_%s=%q", user, password))
	}
	slices.Sort(users)
	const listener, scram = "listener.name.secure.", ".sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;"
	return []string{
		fmt.Sprintf("listeners=PLAINTEXT://%s,SECURE://%s,CONTROLLER://%s", plain, secure, addr(controller)),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://%s,SECURE://%s", plain, secure),
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT",
		listener + "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		listener + "plain.sasl.jaas.config=" + login + strings.Join(users, "") + ";",
		listener + "scram-sha-256" + scram,
		listener + "scram-sha-512" + scram,
		listener + "ssl.client.auth=requested",
		listener + "ssl.keystore.type=PEM",
		listener + "ssl.keystore.location=" + store,
		listener + "ssl.truststore.type=PEM",
		listener + "ssl.truststore.location=" + trust,
		// A revoked user is denied soon, even on open connections.
		listener + "connections.max.reauth.ms=3000",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users=User:ANONYMOUS",
	}, nil
}
