package kafkabroker_test

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"hash"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/internal/testserver"
)

// secured is a broker with users and rights.
type secured struct {
	*testing.T
	*testserver.Kafka
	ca    *testserver.CA
	dir   string
	admin *kgo.Client
}

const canary = "hunter2/canary"

func newSecured(t *testing.T) *secured {
	t.Helper()
	s := &secured{T: t, dir: t.TempDir()}
	var err error
	if s.ca, err = testserver.NewCA(s.dir); err != nil {
		t.Fatal(err)
	}
	s.Kafka = testserver.StartKafka(t, testserver.WithSASL(s.ca, map[string]string{"plain": canary}))
	s.admin = direct(t, s.Addr)
	return s
}

// open opens a sink for kafka://who@LISTENER/?params, on the secure listener.
func (s *secured) open(who string, params ...string) *kafkabroker.Sink {
	s.Helper()
	params = append([]string{"tls-ca=" + s.ca.File}, params...)
	sink, err := kafkabroker.Open("kafka://"+who+"@"+s.Secure+"/?"+strings.Join(params, "&"), nil)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(sink.Close)
	return sink
}

// file writes the canary or another password.
func (s *secured) file(name, text string) string {
	s.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		s.Fatal(err)
	}
	return path
}

// user creates or changes a SCRAM user, or removes it if password is "".
func (s *secured) user(name, password string) {
	s.Helper()
	for _, m := range []struct {
		code int8
		hash func() hash.Hash
		size int
	}{{1, sha256.New, sha256.Size}, {2, sha512.New, sha512.Size}} {
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		if password == "" {
			d := kmsg.NewAlterUserSCRAMCredentialsRequestDeletion()
			d.Name, d.Mechanism = name, m.code
			req.Deletions = append(req.Deletions, d)
		} else {
			salt := []byte(rand.Text())
			salted, err := pbkdf2.Key(m.hash, password, salt, 4096, m.size)
			if err != nil {
				s.Fatal(err)
			}
			u := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
			u.Name, u.Mechanism, u.Iterations, u.Salt, u.SaltedPassword = name, m.code, 4096, salt, salted
			req.Upsertions = append(req.Upsertions, u)
		}
		resp, err := req.RequestWith(s.Context(), s.admin)
		if err == nil {
			err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
}

// allow grants a user operations on a topic, group or transactional id.
func (s *secured) allow(user string, kind kmsg.ACLResourceType, name string, ops ...kmsg.ACLOperation) {
	s.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	for _, op := range ops {
		c := kmsg.NewCreateACLsRequestCreation()
		c.ResourceType, c.ResourceName, c.ResourcePatternType = kind, name, kmsg.ACLResourcePatternTypeLiteral
		c.Principal, c.Host, c.Operation, c.PermissionType = "User:"+user, "*", op, kmsg.ACLPermissionTypeAllow
		req.Creations = append(req.Creations, c)
	}
	resp, err := req.RequestWith(s.Context(), s.admin)
	if err != nil {
		s.Fatal(err)
	}
	for _, r := range resp.Results {
		if r.ErrorCode != 0 {
			s.Fatal(kerr.ErrorForCode(r.ErrorCode))
		}
	}
}

// forbid revokes all rights of a user on a topic.
func (s *secured) forbid(user, topic string) {
	s.Helper()
	req := kmsg.NewPtrDeleteACLsRequest()
	f := kmsg.NewDeleteACLsRequestFilter()
	f.ResourceType, f.ResourceName = kmsg.ACLResourceTypeTopic, kmsg.StringPtr(topic)
	f.ResourcePatternType, f.Principal = kmsg.ACLResourcePatternTypeLiteral, kmsg.StringPtr("User:"+user)
	f.Operation, f.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	req.Filters = append(req.Filters, f)
	if _, err := req.RequestWith(s.Context(), s.admin); err != nil {
		s.Fatal(err)
	}
}

// becomes delivers until the answer is an error that contains want, or nil if
// want is empty, and returns it.
func (s *secured) becomes(sink broker.Sink, topic, want string) *broker.Error {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	for n := 0; ; n++ {
		errs := sink.Deliver(ctx, broker.Batch{Messages: []postrider.Message{{ID: rand.Text(), Topic: topic, Key: "k", Payload: []byte("x")}}})
		var err *broker.Error
		if errs != nil {
			err = broker.Classify(errs[0])
			if strings.Contains(err.Error(), "hunter") {
				s.Errorf("the error repeats the password: %v", err)
			}
		}
		switch {
		case want == "" && err == nil, want != "" && err != nil && strings.Contains(err.Error(), want):
			return err
		case ctx.Err() != nil:
			s.Fatalf("want %q, the answer is %v", want, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// outage is becomes for an outage with its code and destination. An earlier try may have
// been cut off in the middle, and be unknown.
func (s *secured) outage(sink broker.Sink, topic, code, destination, want string) {
	s.Helper()
	var err *broker.Error
	for range 3 {
		if err = s.becomes(sink, topic, want); err.Class == broker.ClassOutage {
			break
		}
	}
	if err.Class != broker.ClassOutage || err.Code != code || err.Destination != destination {
		s.Errorf("want an outage %s at %q, got %v", code, destination, err)
	}
}

// TestWhoWeAre: TLS and SASL by URL on a real listener. A wrong setting is an
// outage with its remedy, and ends when it is corrected, without a new client.
//
// Promises: C
func TestWhoWeAre(t *testing.T) {
	s := newSecured(t)
	create(t, s.Addr, "open", 1)
	create(t, s.Addr, "closed", 1)
	s.user("scram", canary)
	for _, u := range []string{"plain", "scram"} {
		s.allow(u, kmsg.ACLResourceTypeTopic, "open", kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe)
	}
	pass := ":" + url.QueryEscape(canary)
	t.Run("mechanisms", func(t *testing.T) {
		s := s.at(t)
		s.becomes(s.open("plain"+pass), "open", "")
		s.becomes(s.open("scram"+pass, "sasl=scram-sha-256"), "open", "")
		s.becomes(s.open("scram", "sasl=scram-sha-512", "password-file="+s.file("p512", canary)), "open", "")
		t.Setenv("POSTRIDER_TEST_PASSWORD", canary)
		s.becomes(s.open("scram", "sasl=scram-sha-512", "password-env=POSTRIDER_TEST_PASSWORD"), "open", "")
	})
	t.Run("wrong password", func(t *testing.T) {
		s := s.at(t)
		s.outage(s.open("plain:hunter3"), "open", "SASL_AUTHENTICATION_FAILED", "", "check user, password")
		s.outage(s.open("scram:hunter3", "sasl=scram-sha-256"), "open", "SASL_AUTHENTICATION_FAILED", "", "check user, password")
	})
	t.Run("password where none is asked for", func(t *testing.T) {
		sink, err := kafkabroker.Open("kafka://plain"+pass+"@"+s.Addr+"/?sasl=plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close()
		if err := sink.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "this listener takes no SASL") || strings.Contains(err.Error(), canary) {
			t.Errorf("Ping = %v, want what to do, and no password", err)
		}
	})
	t.Run("certificates", func(t *testing.T) { s.at(t).certificates("plain" + pass) })
	t.Run("permission", func(t *testing.T) {
		s := s.at(t)
		sink := s.open("plain" + pass)
		s.becomes(sink, "open", "")
		const fix = "WRITE and DESCRIBE the topic closed"
		s.outage(sink, "closed", "TOPIC_AUTHORIZATION_FAILED", "closed", fix)
		missing, err := sink.Probe(t.Context(), []string{"open", "closed"})
		if err != nil || missing[0] != nil || missing[1] == nil || !strings.Contains(missing[1].Error(), fix) {
			t.Errorf("Probe: %v, %v", missing, err)
		}
		s.allow("plain", kmsg.ACLResourceTypeTopic, "closed", kmsg.ACLOperationDescribe) // seen, but not written to
		s.outage(sink, "closed", "TOPIC_AUTHORIZATION_FAILED", "closed", fix)
		s.allow("plain", kmsg.ACLResourceTypeTopic, "closed", kmsg.ACLOperationWrite)
		s.becomes(sink, "closed", "")
		s.forbid("plain", "closed")
		s.outage(sink, "closed", "TOPIC_AUTHORIZATION_FAILED", "closed", fix)
		s.becomes(sink, "open", "")
		s.allow("plain", kmsg.ACLResourceTypeTopic, "closed", kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe)
		s.becomes(sink, "closed", "")
	})
	t.Run("consumer", func(t *testing.T) { s.at(t).consumer("plain", pass) })
	t.Run("rotation", func(t *testing.T) {
		s := s.at(t)
		file := s.file("rotated", canary)
		sink := s.open("scram", "sasl=scram-sha-512", "password-file="+file)
		s.becomes(sink, "open", "")
		s.user("scram", "hunter4") // the broker asks again after three seconds
		s.outage(sink, "open", "SASL_AUTHENTICATION_FAILED", "", "password-file is read again")
		s.file("rotated", "hunter4")
		s.becomes(sink, "open", "")
		s.user("scram", "")
		s.outage(sink, "open", "SASL_AUTHENTICATION_FAILED", "", "check user")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		s.outage(sink, "open", "", "", "no such file")
		s.file("rotated", canary)
		s.user("scram", canary)
		s.becomes(sink, "open", "")
	})
}

// consumer receives with a source whose errors name the rights that it lacks, one after
// the other, and which continues when they are granted.
func (s *secured) consumer(user, pass string) {
	s.Helper()
	create(s.T, s.Addr, "read", 1)
	s.allow(user, kmsg.ACLResourceTypeTopic, "read", kmsg.ACLOperationWrite)
	s.becomes(s.open(user+pass), "read", "")
	target, err := kafkabroker.ParseURL("kafka://" + user + pass + "@" + s.Secure + "/?tls-ca=" + s.ca.File)
	if err != nil {
		s.Fatal(err)
	}
	src, err := kafkabroker.NewSource(target.Client, &kafkabroker.SourceOptions{Group: "readers", Topics: []string{"read"}})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(src.Close)
	until := func(want string) (ds []broker.Delivery) {
		ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
		defer cancel()
		for {
			ds, err := src.Receive(ctx, 10)
			if ctx.Err() != nil {
				s.Fatalf("want %q, the last answer is %v", want, err)
			}
			if err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want) {
				return ds
			}
		}
	}
	until("allow this user to READ the group readers")
	s.allow(user, kmsg.ACLResourceTypeGroup, "readers", kmsg.ACLOperationRead)
	until("allow this user to READ and DESCRIBE the topic read")
	s.allow(user, kmsg.ACLResourceTypeTopic, "read", kmsg.ACLOperationRead)
	ds := until("")
	if err := src.Settle(s.Context(), []broker.Verdict{{Delivery: ds[0], Ack: true}}); err != nil {
		s.Error(err)
	}
}

func (s *secured) at(t *testing.T) *secured {
	t.Helper()
	sub := *s
	sub.T = t
	return &sub
}

// certificates checks that a client without a certificate of the authority, or without
// trust in it, is refused.
func (s *secured) certificates(who string) {
	s.Helper()
	other := s.TempDir()
	stranger, err := testserver.NewCA(other)
	if err != nil {
		s.Fatal(err)
	}
	files := func(ca *testserver.CA, dir string) (params []string) {
		cert, key, err := ca.IssueFiles(dir, "me")
		if err != nil {
			s.Fatal(err)
		}
		return []string{"tls-cert=" + cert, "tls-key=" + key}
	}
	s.becomes(s.open(who, files(s.ca, s.dir)...), "open", "")
	if err := s.becomes(s.open(who, files(stranger, other)...), "open", "certificate"); err.Class != broker.ClassOutage {
		s.Errorf("a stranger's certificate: %v", err)
	}
	s.outage(s.open(who, "tls-server-name=elsewhere"), "open", "", "", "elsewhere")
	sink, err := kafkabroker.Open("kafka://"+who+"@"+s.Secure+"/?tls-ca="+stranger.File, nil)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(sink.Close)
	s.outage(sink, "open", "", "", "certificate signed by unknown authority")
	sink, err = kafkabroker.Open("kafka://"+who+"@"+s.Secure, nil)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(sink.Close)
	if err := s.becomes(sink, "open", "outage"); err.Class != broker.ClassOutage {
		s.Errorf("without TLS: %v", err)
	}
}
