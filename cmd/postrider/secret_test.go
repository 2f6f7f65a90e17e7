package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
)

// passwords are such that a search for one of them finds other words of a text too: the
// user's name, the host, words of our own messages, single letters.
func passwords() []string {
	return []string{"app", "127.0.0.1", "postgres", "store", "broker", "refused", "a", "0", "..."}
}

// sample is a password that is part of nothing else.
const sample = "Zq7xKw9vJ3"

// TestOutputDoesNotDependOnThePassword: what is printed with one password is printed with
// any other, letter for letter. Comparing both outputs reveals nothing.
//
// Promises: C
func TestOutputDoesNotDependOnThePassword(t *testing.T) {
	yml := func(text string) []string {
		file := filepath.Join(t.TempDir(), "p.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"status", "-c", file}
	}
	pg := testserver.StartPostgres(t, "18") // of its own: it asks a role for its password
	store := outboxOn(t, pg)
	if _, err := pg.Query(t.Context(), "postgres", `CREATE ROLE app LOGIN PASSWORD 'right horse'`); err != nil {
		t.Fatal(err)
	}
	guard(t, pg, "app")
	my := fmt.Sprintf("mysql://nobody:PASS@127.0.0.1:%d/app", testserver.SharedMySQL(t, testserver.MariaDB10).Port)
	down := "postgres://app:PASS@127.0.0.1:1/app?connect_timeout=2"
	for name, command := range map[string]func(in func(string) string) result{
		"unreachable": func(in func(string) string) result { return cli(t, nil, "", "status", "--store", in(down)) },
		"wrong password": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", as(t, store, "app", in("PASS")))
		},
		"wrong parameter": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", in(down+"&sslmode=maybe"))
		},
		"wrong port": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", in("postgres://app:PASS@h:x/app"))
		},
		"in a parameter": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", in("postgres://h:x/app?user=app&password=PASS"))
		},
		"environment": func(in func(string) string) result {
			return cli(t, map[string]string{"POSTRIDER_STORE": in(down)}, "", "status")
		},
		"wrong variable": func(in func(string) string) result {
			return cli(t, map[string]string{"POSTRIDER_WINDOW": in(down)}, "", "relay")
		},
		"argument":   func(in func(string) string) result { return cli(t, nil, "", "status", in(down)) },
		"one dash":   func(in func(string) string) result { return cli(t, nil, "", "status", in("-store="+down)) },
		"no name":    func(in func(string) string) result { return cli(t, nil, "", "status", in("--="+down)) },
		"wrong flag": func(in func(string) string) result { return cli(t, nil, "", "status", in("--"+down)) },
		"number":     func(in func(string) string) result { return cli(t, nil, "", "relay", "--window", in(down)) },
		"record":     func(in func(string) string) result { return cli(t, nil, "", "dead", "show", in(down)) },
		"listener": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--listen", in(down), "--store", "memory:", "--broker", "memory:")
		},
		"keywords": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", in("host=h user=app password=PASS"))
		},
		"unknown scheme": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", in("oracle://app:PASS@h/app"))
		},
		"MySQL": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", in("mysql://app:PASS@127.0.0.1:1/app"))
		},
		"MySQL, wrong password": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", in(my))
		},
		"MySQL, wrong parameter": func(in func(string) string) result {
			return cli(t, nil, "", "status", "--store", in("mysql://app:PASS@127.0.0.1:1/app?tls=maybe"))
		},
		"file": func(in func(string) string) result {
			return cli(t, nil, "", yml(in("store: "+down+"\nwindow: x\n"))...)
		},
		"value in a file": func(in func(string) string) result { return cli(t, nil, "", yml(in("window: "+down+"\n"))...) },
		"Kafka": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--store", "memory:", "--broker", in("kafka://app:PASS@h?x=1"))
		},
		"NATS": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--store", "memory:", "--broker", in("nats://PASS@h?x=1"))
		},
		"RabbitMQ": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--store", "memory:", "--broker", in("amqp://app:PASS@h?x=1"))
		},
		"Redis": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--store", "memory:", "--broker", in("redis://:PASS@h/0?x=1"))
		},
		"webhook": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--store", "memory:", "--broker", in("https://app:PASS@h/PASS?t=PASS#x=PASS"))
		},
		"SQS": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--store", "memory:", "--broker", in("sqs://app:PASS@eu-central-1?x=1"))
		},
		"SNS": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--store", "memory:", "--broker", in("sns://app:PASS@eu-central-1?account=123456789012&x=1"))
		},
		"Pub/Sub": func(in func(string) string) result {
			return cli(t, nil, "", "relay", "--store", "memory:", "--broker", in("pubsub://app:PASS@project-one?x=1"))
		},
		"demo": func(in func(string) string) result {
			return cli(t, nil, "", "demo", "--broker", in("nats://app:PASS@127.0.0.1:1"))
		},
		"demo, store": func(in func(string) string) result {
			return cli(t, nil, "", "demo", "--store", in("postgres://app:PASS@127.0.0.1:1/app?sslmode=maybe"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			say := func(password string) string {
				in := func(text string) string { return strings.ReplaceAll(text, "PASS", url.QueryEscape(password)) }
				if name == "wrong password" {
					in = func(string) string { return password }
				}
				got := command(in)
				if got.code == 0 {
					t.Fatalf("it works: %s", got.out)
				}
				return spans.ReplaceAllString(got.out+got.err, "N")
			}
			want := say(sample)
			if strings.Contains(want, sample) {
				t.Fatalf("the password is printed: %s", want)
			}
			for _, password := range passwords() {
				if got := say(password); got != want {
					t.Errorf("with the password %q:\n%s\nwith another one:\n%s", password, got, want)
				}
			}
		})
	}
}

// spans differ from run to run: how long something took, numbers of processes and of
// characters that are not shown, and the names of test files.
var spans = regexp.MustCompile(`\d+(\.\d+)?(ms|µs|s)\b|\(\d+ characters|\S+p\.yml`)

// TestLogDoesNotDependOnThePassword is the same for what a relay says of its broker.
//
// Promises: C
func TestLogDoesNotDependOnThePassword(t *testing.T) {
	store := fileOutbox(t, "orders")
	reason := regexp.MustCompile(`(?m)error="?.*$`)
	for _, broker := range []string{
		"kafka://app:PASS@127.0.0.1:1", "nats://app:PASS@127.0.0.1:1", "amqp://app:PASS@127.0.0.1:1/app",
		"redis://app:PASS@127.0.0.1:1", "https://app:PASS@127.0.0.1:1/PASS#unsigned=true&allow=127.0.0.1",
	} {
		scheme, _, _ := strings.Cut(broker, ":")
		t.Run(scheme, func(t *testing.T) {
			say := func(password string) string {
				p := launchRelay(t, store, strings.ReplaceAll(broker, "PASS", url.QueryEscape(password)))
				until(t, "the relay says what is wrong", p, func() bool { return p.said.count("error=") > 0 })
				p.signal(os.Interrupt)
				p.ends(3 * time.Minute)
				return spans.ReplaceAllString(reason.FindString(p.said.String()), "N")
			}
			want := say(sample)
			if strings.Contains(want, sample) {
				t.Fatalf("the password is printed: %s", want)
			}
			for _, password := range []string{"app", "0"} {
				got := say(password)
				// Two calls fail at the start, and either may be logged first: a text that
				// depends on the password differs every time.
				for try := 0; got != want && try < 5; try++ {
					want, got = say(sample), say(password)
				}
				if got != want {
					t.Errorf("with the password %q:\n%s\nwith another one:\n%s", password, got, want)
				}
			}
		})
	}
}
