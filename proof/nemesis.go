package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// fleet runs the relay processes.
type fleet struct {
	binary, store, broker string
	wake                  string // "": poll
	procs                 []*exec.Cmd
}

func (f *fleet) start(ctx context.Context, i int) error {
	cmd := exec.CommandContext(ctx, f.binary, "relay", "--store", f.store, "--broker", f.broker, "--listen", "", "--wake", cmp.Or(f.wake, "poll"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start relay %d: %w", i, err)
	}
	f.procs[i] = cmd
	return nil
}

// kill ends relay i with SIGKILL and restarts it.
func (f *fleet) kill(ctx context.Context, i int) error {
	if err := f.procs[i].Process.Kill(); err != nil {
		return fmt.Errorf("kill relay %d: %w", i, err)
	}
	err := f.procs[i].Wait()
	ws, ok := f.procs[i].ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		return fmt.Errorf("relay %d was not ended by the kill: %w", i, err)
	}
	return f.start(ctx, i)
}

func (f *fleet) end() {
	for _, p := range f.procs {
		if p != nil && p.ProcessState == nil {
			_ = p.Process.Signal(syscall.SIGTERM)
			_ = p.Wait()
		}
	}
}

// freeze suspends relay i for d.
func (f *fleet) freeze(ctx context.Context, i int, d time.Duration) error {
	p := f.procs[i].Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze relay %d: %w", i, err)
	}
	err := pause(ctx, d)
	return errors.Join(err, p.Signal(syscall.SIGCONT))
}

// nemesis kills relays and kills or freezes the broker, in turns. Between two acts
// messages must move.
type nemesis struct {
	fleet *fleet
	b     *source
	rnd   *rand.Rand
	c     Config

	killStore func() error // nil: not possible

	kills, brokerKills, freezes int
	storeKills, relayFreezes    int
	inFlight                    int // kills and freezes of the broker right after the arrival of a message
}

func (n *nemesis) run(ctx context.Context) error {
	seen := 0
	for n.kills < n.c.Kills || n.brokerActs() < n.c.BrokerKills || n.storeKills < n.c.StoreKills || n.relayFreezes < n.c.Freezes {
		var err error
		if seen, err = n.b.moved(ctx, seen+100); err != nil {
			return fmt.Errorf("after %d kills of relays and %d of the broker: %w", n.kills, n.brokerActs(), err)
		}
		longest := 400
		if n.c.Wake == "log" {
			longest = 4_000 // the log is read after a while
		}
		if err := pause(ctx, time.Duration(n.rnd.IntN(longest))*time.Millisecond); err != nil {
			return err
		}
		if n.relayFreezes < n.c.Freezes {
			if err := n.fleet.freeze(ctx, n.rnd.IntN(len(n.fleet.procs)), n.c.Freeze); err != nil {
				return err
			}
			n.relayFreezes++
			say("relay frozen for %v, %d times", n.c.Freeze, n.relayFreezes)
			continue
		}
		if n.storeKills < n.c.StoreKills && n.storeKills*n.c.Kills <= n.kills*n.c.StoreKills {
			if err := n.killStore(); err != nil {
				return fmt.Errorf("kill of the database: %w", err)
			}
			n.storeKills++
			say("database killed, %d in all", n.storeKills)
			continue
		}
		if n.kills >= n.c.Kills && n.brokerActs() >= n.c.BrokerKills {
			continue
		}
		if n.brokerActs()*n.c.Kills < n.kills*n.c.BrokerKills || n.kills >= n.c.Kills {
			err = n.strike(ctx)
		} else {
			err = n.killRelay(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *nemesis) brokerActs() int { return n.brokerKills + n.freezes }

func (n *nemesis) killRelay(ctx context.Context) error {
	if err := n.fleet.kill(ctx, n.rnd.IntN(len(n.fleet.procs))); err != nil {
		return err
	}
	n.kills++
	say("relay killed, %d in all", n.kills)
	return nil
}

// strike kills or freezes the broker. Every third time it also kills a relay while the
// broker is down.
func (n *nemesis) strike(ctx context.Context) error {
	before, err := n.b.moved(ctx, -1) // it repeats a count that a busy broker does not answer in time
	if err != nil {
		return err
	}
	if _, err := n.b.moved(ctx, before); err != nil {
		return err
	}
	seen := time.Now()
	act, undo, away := n.b.Kill, n.b.Restart, time.Duration(n.rnd.IntN(1500))*time.Millisecond
	if n.brokerActs()%2 == 1 {
		act, undo = n.b.Freeze, n.b.Thaw
		if n.freezes == 0 {
			away = n.c.Freeze
		} else {
			away = time.Duration(200+n.rnd.IntN(3000)) * time.Millisecond
		}
		n.freezes++
	} else {
		n.brokerKills++
	}
	if time.Since(seen) < 20*time.Millisecond {
		n.inFlight++
	}
	if err := act(); err != nil {
		return err
	}
	say("broker down for %[3]v: %[1]d kills, %[2]d freezes so far", n.brokerKills, n.freezes, away)
	if n.brokerActs()%3 == 0 && n.kills < n.c.Kills {
		if err := n.killRelay(ctx); err != nil {
			return err
		}
	}
	if err := pause(ctx, away); err != nil {
		return err
	}
	return undo()
}
