package promises

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/pgstore"
)

const (
	childStore  = "POSTRIDER_PROMISES_STORE"  // its presence makes this binary a relay
	childBroker = "POSTRIDER_PROMISES_BROKER" // a NATS URL
	poison      = "poison"                    // type of the message at which a child halts
)

// beRelay runs a relay until standard input ends, which also happens when the test dies.
func beRelay(store string) error {
	pool, err := pgxpool.New(context.Background(), store)
	if err != nil {
		return err
	}
	defer pool.Close()
	sink, err := natsbroker.Open(os.Getenv(childBroker)+"?dedup=off", nil)
	if err != nil {
		return err
	}
	defer sink.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	halting := &halting{Sink: sink, goOn: make(chan struct{})}
	go func() {
		in := bufio.NewReader(os.Stdin)
		for {
			if _, err := in.ReadString('\n'); err != nil {
				cancel()
				return
			}
			close(halting.goOn)
		}
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return relay.New(pgstore.New(pool, nil), halting, &relay.Options{Window: window, Page: window / 2, Logger: log}).Run(ctx)
}

// halting blocks in the first call that carries poison and reports it. After the signal to
// continue it refuses the poison.
type halting struct {
	broker.Sink
	once sync.Once
	goOn chan struct{}
}

func (h *halting) Deliver(ctx context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	for i := range msgs {
		if msgs[i].Type != poison {
			continue
		}
		errs := make([]error, len(msgs))
		h.once.Do(func() {
			fmt.Println("halted")
			<-h.goOn
		})
		for j := range errs {
			errs[j] = broker.Rejected(errors.New("poison"), "POISON", msgs[j].Topic)
		}
		return errs
	}
	return h.Sink.Deliver(ctx, batch)
}

// child is a relay in a separate process.
type child struct {
	*testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err strings.Builder
}

func (r *rig) child(brokerURL string) *child {
	r.Helper()
	c := &child{T: r.T, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childStore+"="+r.url, childBroker+"="+brokerURL)
	c.cmd.Stderr = &c.err
	in, err := c.cmd.StdinPipe()
	if err != nil {
		r.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if c.cmd.ProcessState != nil {
			return
		}
		_ = c.cmd.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		end := time.AfterFunc(10*time.Second, func() { _ = c.cmd.Process.Kill() })
		defer end.Stop()
		if err := c.cmd.Wait(); err != nil {
			r.Errorf("the relay process: %v\n%s", err, &c.err)
		}
	})
	return c
}

func (c *child) signal(s syscall.Signal) {
	c.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.Fatal(err)
	}
}

// kill ends the process as a crash would.
func (c *child) kill() {
	c.Helper()
	c.signal(syscall.SIGKILL)
	_ = c.cmd.Wait()
	if ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		c.Fatalf("the relay process ended before the kill:\n%s", &c.err)
	}
}
