package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
)

// childEnv is the environment variable with the childConfig of a consumer process.
const childEnv = "POSTRIDER_PROMISES_CONSUMER"

type childConfig struct {
	Broker, URL, Topic string
	Kind               kind
	DSN                string
	Order              inbox.Order
}

// beConsumer runs a consumer whose handler pauses, and ends the process at a message of the
// type poison. It runs until standard input ends, which also happens when the test dies.
func beConsumer(config string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	src, _, err := openSource(c.Broker, c.URL, c.Topic, consumes)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	opts := quick
	opts.Concurrency = 6
	if c.Order == inbox.Contiguous {
		opts.Batch = 5
	}
	opts.Order = func(string) inbox.Order { return c.Order }
	return runConsumer(ctx, c.Kind, c.DSN, src, &opts, []string{"order.placed", "poison"},
		func(ctx context.Context, do func(string, ...any) error, m postrider.Message) error {
			if m.Type == "poison" {
				os.Exit(killed)
			}
			if err := book(do, m); err != nil {
				return err
			}
			pause := time.NewTimer(2 * time.Millisecond) // so that a kill finds handlers at work
			defer pause.Stop()
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
			return ctx.Err()
		})
}

// consuming is a consumer in a separate process.
type consuming struct {
	cmd  *exec.Cmd
	out  strings.Builder
	dead chan struct{} // closed when it has ended
}

func startChild(t *testing.T, b *server, s *effectStore, topic string, order inbox.Order) *consuming {
	t.Helper()
	config, err := json.Marshal(childConfig{b.Name, b.URL, topic, s.kind, s.dsn, order})
	if err != nil {
		t.Fatal(err)
	}
	c := &consuming{cmd: exec.Command(os.Args[0]), dead: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.cmd.Wait(); close(c.dead) }()
	t.Cleanup(func() {
		_ = in.Close()
		end := time.AfterFunc(10*time.Second, func() { _ = c.cmd.Process.Kill() })
		defer end.Stop()
		<-c.dead
	})
	return c
}

// consumerKilled kills a consumer's process twice, without notice to the broker.
func consumerKilled(sc *effectScene) {
	killTwice(sc, numbered(sc.topic, killedKeys, 0, killedEach), inbox.AnyOrder)
}

// shuffledAndKilled does the same to a consumer that receives the versions of a key in any
// order and applies them in turn.
func shuffledAndKilled(sc *effectScene) {
	msgs := numbered(sc.topic, killedKeys, 0, killedEach)
	for i := range msgs {
		msgs[i].Version = int64(i/killedKeys + 1)
	}
	rand.Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
	killTwice(sc, msgs, inbox.Contiguous)
	if n := count(sc.T, sc.s.db, "SELECT count(*) FROM "+table(sc.s.in, sc.s.db, "stash")); n != 0 {
		sc.T.Errorf("%d messages are left in the stash", n)
	}
}

const killedKeys, killedEach = 8, 60

func killTwice(sc *effectScene, msgs []postrider.Message, order inbox.Order) {
	t, b, s, topic := sc.T, sc.b, sc.s, sc.topic
	const keys, each = killedKeys, killedEach
	b.publish(t, msgs...)
	for kill := range 2 {
		c := startChild(t, b, s, topic, order)
		from := s.count(t)
		until(t, 60*time.Second, "messages flow", func() bool { return s.count(t) > from+keys*10 })
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-c.dead
		if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
			t.Fatalf("the consumer ended before the kill: %s", &c.out)
		}
		if done := s.count(t); done >= keys*each {
			t.Fatalf("kill %d came after the last message", kill+1)
		}
	}
	startChild(t, b, s, topic, order)
	until(t, 90*time.Second, "every message has its effect", func() bool { return s.count(t) >= keys*each })
	until(t, 20*time.Second, "everything is acknowledged", func() bool { return b.left(t, topic, consumes) == 0 })
	s.check(t, keys, each)
}

// handlerKills runs a handler that ends the process at one message: only that message is
// dead after its attempts, although every crash interrupts the handlers of other messages
// too.
func handlerKills(sc *effectScene) {
	t, b, s, topic := sc.T, sc.b, sc.s, sc.topic
	const keys, each = 8, 30
	poison := postrider.JSON(topic, "poisoned", "poison", nil)
	poison.ID = "01890a5d-ac96-774b-bcce-999999999999"
	msgs := numbered(topic, keys, 0, each)
	b.publish(t, append(append(msgs[:keys:keys], poison), msgs[keys:]...)...)
	deaths := 0
	for {
		c := startChild(t, b, s, topic, inbox.AnyOrder)
		dies := false
		until(t, 90*time.Second, fmt.Sprintf("after %d deaths everything has its effect", deaths), func() bool {
			select {
			case <-c.dead:
				dies = true
			default:
			}
			return dies || s.count(t) >= keys*each && b.left(t, topic, consumes) == 0
		})
		if !dies {
			break
		}
		if code := c.cmd.ProcessState.ExitCode(); code != killed {
			t.Fatalf("the consumer ended with %d: %s", code, &c.out)
		}
		deaths++
	}
	if deaths != quick.MaxAttempts {
		t.Errorf("the handler killed the process %d times, want %d = MaxAttempts", deaths, quick.MaxAttempts)
	}
	s.check(t, keys, each)
	dead, err := s.in.DeadLetters(t.Context(), s.db, "", 10)
	if err != nil || len(dead) != 1 || dead[0].Message.ID != poison.ID {
		t.Errorf("dead letters %+v, %v; want only the poison", dead, err)
	}
}
