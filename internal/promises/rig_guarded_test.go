package promises

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// guardedNATS reads its users from its configuration, and again on request. A client
// without a name, such as the test, has all rights.
func guardedNATS(t *testing.T, file string) *guarded {
	t.Helper()
	password, denied := first, ""
	users := func() string {
		return fmt.Sprintf(`authorization { users = [ {user: test, password: test},
			{user: relay, password: %q, permissions: {publish: {allow: ">", deny: [%s]}, subscribe: "_INBOX.>"}} ] }`, password, denied)
	}
	now := users()
	s := testserver.StartNATS(t, testserver.WithConfig("no_auth_user: test", now))
	reload := func(t *testing.T) {
		path := filepath.Join(s.Dir, "nats.conf")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		next := users()
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), now, next, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		now = next
		if err := syscall.Kill(s.PID, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	return &guarded{
		server: *natsServer(t, s), wrong: "check user, password", forbidden: "PERMISSION at",
		open: func(t *testing.T) broker.Sink {
			sink, err := natsbroker.Open(strings.Replace(s.URL, "://", "://relay@", 1)+"/?dedup=off&password-file="+file, nil)
			return opened(t, sink, err)
		},
		password: func(t *testing.T, next string) { password = next; reload(t) },
		allow: func(t *testing.T, topic string, allowed bool) {
			if denied = `"` + topic + `"`; allowed {
				denied = ""
			}
			reload(t)
		},
	}
}

func guardedRedis(t *testing.T, file string) *guarded {
	t.Helper()
	s := testserver.StartRedis(t, testserver.Redis7)
	addr := s.Addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	do := func(t *testing.T, args ...any) {
		t.Helper()
		if err := client.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do(t, "ACL", "SETUSER", "relay", "on", ">"+first, "+@all")
	return &guarded{
		server: *redisServer(t, s), wrong: "WRONGPASS", forbidden: "NOPERM at",
		open: func(t *testing.T) broker.Sink {
			sink, err := redisbroker.Open("redis://relay@"+addr+"/?create=off&password-file="+file, nil)
			return opened(t, sink, err)
		},
		password: func(t *testing.T, next string) {
			do(t, "ACL", "SETUSER", "relay", "resetpass", ">"+next)
			do(t, "CLIENT", "KILL", "USER", "relay") // Redis keeps existing connections otherwise
		},
		allow: func(t *testing.T, topic string, allowed bool) {
			keys := "~" + topic
			if !allowed {
				keys = "resetkeys"
			}
			do(t, "ACL", "SETUSER", "relay", keys)
		},
	}
}

func guardedRabbitMQ(t *testing.T, file string) *guarded {
	t.Helper()
	s := testserver.StartRabbitMQ(t, "4.0")
	ctl := func(t *testing.T, args ...string) {
		t.Helper()
		if err := s.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	// A channel caches its permissions, see rabbit_channel's permission cache.
	hangUp := func(t *testing.T) { ctl(t, "close_all_user_connections", "relay", "revoked") }
	ctl(t, "add_user", "relay", first)
	return &guarded{
		server: *rabbitServer(t, s), wrong: "check the user's name and password", forbidden: "write access to exchange",
		open: func(t *testing.T) broker.Sink {
			sink, err := rabbitbroker.Open("amqp://relay@"+s.Addr+"/?password-file="+file, nil)
			return opened(t, sink, err)
		},
		password: func(t *testing.T, next string) { ctl(t, "change_password", "relay", next); hangUp(t) },
		allow: func(t *testing.T, _ string, allowed bool) {
			may := "^$"
			if allowed {
				may = ".*"
			}
			ctl(t, "set_permissions", "relay", may, may, may)
			if !allowed {
				hangUp(t)
			}
		},
	}
}

// guardedKafka authenticates its clients again every 3 s.
func guardedKafka(t *testing.T, file string) *guarded {
	t.Helper()
	ca, err := testserver.NewCA(filepath.Dir(file))
	if err != nil {
		t.Fatal(err)
	}
	k := testserver.StartKafka(t, testserver.WithSASL(ca, nil))
	admin, err := kgo.NewClient(kgo.SeedBrokers(k.Addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	scram(t, admin, "relay", first)
	return &guarded{
		server: *kafkaServer(t, k), wrong: "SASL_AUTHENTICATION_FAILED", forbidden: "TOPIC_AUTHORIZATION_FAILED at",
		open: func(t *testing.T) broker.Sink {
			sink, err := kafkabroker.Open("kafka://relay@"+k.Secure+"/?sasl=scram-sha-256&tls-ca="+ca.File+"&password-file="+file, nil)
			return opened(t, sink, err)
		},
		password: func(t *testing.T, next string) { scram(t, admin, "relay", next) },
		allow: func(t *testing.T, topic string, allowed bool) {
			t.Helper()
			mayWrite(t, admin, "relay", topic, allowed)
		},
	}
}

// scram sets a user's password, see https://kafka.apache.org/protocol (AlterUserScramCredentials).
func scram(t *testing.T, admin *kgo.Client, user, password string) {
	t.Helper()
	const sha256Code, iterations = 1, 4096
	salt := []byte(rand.Text())
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		t.Fatal(err)
	}
	u := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
	u.Name, u.Mechanism, u.Iterations, u.Salt, u.SaltedPassword = user, sha256Code, iterations, salt, salted
	req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	req.Upsertions = append(req.Upsertions, u)
	resp, err := req.RequestWith(t.Context(), admin)
	if err == nil {
		err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mayWrite grants a user all rights to a topic, or revokes them.
func mayWrite(t *testing.T, admin *kgo.Client, user, topic string, allowed bool) {
	t.Helper()
	if !allowed {
		f := kmsg.NewDeleteACLsRequestFilter()
		f.ResourceType, f.ResourceName, f.ResourcePatternType = kmsg.ACLResourceTypeTopic, &topic, kmsg.ACLResourcePatternTypeLiteral
		f.Operation, f.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
		req := kmsg.NewPtrDeleteACLsRequest()
		req.Filters = append(req.Filters, f)
		resp, err := req.RequestWith(t.Context(), admin)
		if err == nil {
			err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	c := kmsg.NewCreateACLsRequestCreation()
	c.ResourceType, c.ResourceName, c.ResourcePatternType = kmsg.ACLResourceTypeTopic, topic, kmsg.ACLResourcePatternTypeLiteral
	c.Principal, c.Host, c.Operation, c.PermissionType = "User:"+user, "*", kmsg.ACLOperationAll, kmsg.ACLPermissionTypeAllow
	req := kmsg.NewPtrCreateACLsRequest()
	req.Creations = append(req.Creations, c)
	resp, err := req.RequestWith(t.Context(), admin)
	if err == nil {
		err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
}
