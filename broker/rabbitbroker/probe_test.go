package rabbitbroker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestProbeRefused: a rejected login and a missing right to publish are reported at the
// start, and nothing is published.
func TestProbeRefused(t *testing.T) {
	t.Parallel()
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			server := testserver.SharedRabbitMQ(t, version)
			ch := channel(t, server.URL)
			topics, all := exchange(t, ch, "topic", "#")
			queue := declare(t, ch, single())
			user := "u" + strings.ToLower(rand.Text()[:8])
			for _, args := range [][]string{
				{"add_user", user, "secret"},
				{"set_permissions", user, ".*", "^" + topics, ".*"}, // not on amq.default
				{"set_topic_permissions", user, topics, "^may", ".*"},
			} {
				if err := server.Ctl(t.Context(), args...); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(t.TempDir(), "password")
			if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			gone := open(t, "amqp://"+user+"@"+server.Addr+"?password-file="+file)
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if _, err := gone.Probe(t.Context(), nil); !errors.Is(err, broker.ErrRefused) || !strings.Contains(err.Error(), "cannot be read") {
				t.Errorf("its password is in a file that is gone: %v", err)
			}
			topic := "set_topic_permissions"
			if version >= "4" { // it checks topic permissions last, when a message would be published
				topic = ""
			}
			for _, c := range []struct{ user, path, topic, want string }{
				{"guest:guest", "", queue, ""},
				{user + ":secret", "", queue, "write permission on exchange amq.default"},
				{user + ":secret", "?exchange=" + topics, "may", ""},
				{user + ":secret", "?exchange=" + topics, "not", topic},
				{user + ":secret", "?routing-key=key&exchange=" + topics, "not", ""}, // it is not the routing key
				{user + ":hunter2", "", queue, "check the user's name and password"},
				{"guest:guest", "nowhere", queue, `virtual host "nowhere"`},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				missing, err := open(t, "amqp://"+c.user+"@"+server.Addr+"/"+c.path).Probe(ctx, []string{c.topic})
				cancel()
				found := errors.Join(append(missing, err)...)
				switch {
				case c.want == "":
					if found != nil {
						t.Errorf("%+v: %v", c, found)
					}
				case found == nil || !strings.Contains(found.Error(), c.want) || strings.Contains(found.Error(), "hunter2"):
					t.Errorf("%+v: %v", c, found)
				case errors.Is(err, broker.ErrRefused) == strings.Contains(c.want, "permission"):
					t.Errorf("%+v: %v is not what refuses us at all", c, err)
				}
			}
			for _, q := range []string{queue, all} {
				if q, err := ch.QueueDeclarePassive(q, true, false, false, false, nil); err != nil || q.Messages != 0 {
					t.Errorf("the look has published: %+v, %v", q, err)
				}
			}
		})
	}
}

// TestQuickRefusal: a refusal that arrives before the next request is sent, as on
// a busy machine, is still reported.
func TestQuickRefusal(t *testing.T) {
	t.Parallel()
	ch := channel(t, testserver.SharedRabbitMQ(t, "4.0").URL)
	refusal := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Publish("", "nowhere", false, false, amqp.Publishing{Expiration: "never"}); err != nil {
		t.Fatal(err)
	}
	limit := time.After(time.Minute)
	for tick := time.NewTicker(time.Millisecond); !ch.IsClosed(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("the broker refuses nothing")
		}
	}
	var e *amqp.Error
	if err := rabbitbroker.AnswerOn(ch, refusal); !errors.As(err, &e) || e.Code != amqp.PreconditionFailed {
		t.Errorf("the answer is %v", err)
	}
}
