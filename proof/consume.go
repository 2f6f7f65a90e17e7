package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/proof/member"
)

// ConsumeConfig configures a run of consumers.
type ConsumeConfig struct {
	Broker     string
	Postgres   string
	Order      string
	Messages   int
	Keys       int
	Members    int
	Batch      int
	Kills      int
	DBRestarts int
	Rebalances int
	Freezes    int           // of a consumer and of the broker, in turns
	AckWait    time.Duration // on NATS
	Trouble    bool
	Seed       uint64
	Log        slog.Level // of the consumers, on standard error
}

// ConsumeResult has the counts in the database at the end.
type ConsumeResult struct {
	OK         bool    `json:"ok"`
	Broker     string  `json:"broker"`
	Order      string  `json:"order"`
	Messages   int     `json:"messages"`
	Published  int     `json:"published"` // copies included
	Effects    int     `json:"effects"`
	Missing    int     `json:"missing"` // messages without an effect, or under "latest" keys without their last version
	Double     int     `json:"double"`
	Stale      int     `json:"stale"`  // effects after an effect of the same or a later version of their key
	Ahead      int     `json:"ahead"`  // under "contiguous": effects before their predecessor's
	Dead       int     `json:"dead"`   // dead letters
	Stashed    int     `json:"stash"`  // messages left in the stash
	Unread     int     `json:"unread"` // messages left at the broker
	Kills      int     `json:"kills"`
	Exits      int     `json:"exits"` // processes ended by a handler
	DBRestarts int     `json:"db_restarts"`
	Rebalances int     `json:"rebalances"` // members that joined and left
	Freezes    int     `json:"freezes"`
	RSS        int     `json:"rss_mib"` // the largest consumer
	Memory     memory  `json:"rss_over_time"`
	Seconds    float64 `json:"seconds"`
	Rate       float64 `json:"per_s"`
	Seed       uint64  `json:"seed"`
}

// consumeCommand runs "proof consume".
func consumeCommand(ctx context.Context, args []string) (ConsumeResult, error) {
	var c ConsumeConfig
	fs := flag.NewFlagSet("proof consume", flag.ExitOnError)
	fs.StringVar(&c.Broker, "broker", "kafka", "one of "+strings.Join(private.Names(), ", "))
	fs.StringVar(&c.Postgres, "postgres", "15", "major version")
	fs.StringVar(&c.Order, "order", "contiguous", "one of "+strings.Join(slices.Sorted(maps.Keys(member.Orders())), ", "))
	fs.IntVar(&c.Messages, "messages", 200_000, "messages, of which every tenth is published twice")
	fs.IntVar(&c.Keys, "keys", 2_000, "keys")
	fs.IntVar(&c.Members, "members", 2, "consumer processes")
	fs.IntVar(&c.Batch, "batch", 20, "messages that share a transaction")
	fs.IntVar(&c.Kills, "kills", 30, "SIGKILLs of a consumer")
	fs.IntVar(&c.DBRestarts, "db-restarts", 5, "crashes and restarts of the database, in turns")
	fs.IntVar(&c.Rebalances, "rebalances", 3, "members that join and leave")
	fs.IntVar(&c.Freezes, "freezes", 0, "SIGSTOPs of a consumer and of the broker, in turns, each for 1 to 3 s")
	fs.DurationVar(&c.AckWait, "ack-wait", 8*time.Second, "time after which NATS redelivers")
	fs.BoolVar(&c.Trouble, "trouble", true, "make some handlers fail, hang, panic and end the process")
	fs.Uint64Var(&c.Seed, "seed", rand.Uint64(), "seed of the order of messages and faults")
	fs.TextVar(&c.Log, "log", slog.LevelError+1, "level of the consumers' log on standard error: debug, info, warn, error or none")
	if err := fs.Parse(args); err != nil {
		return ConsumeResult{}, err
	}
	return RunConsume(ctx, c)
}

// RunConsume runs one campaign: it fills a broker, starts consumers, disturbs them, waits
// for quiet and counts.
func RunConsume(ctx context.Context, c ConsumeConfig) (ConsumeResult, error) {
	pg, err := testserver.LaunchPostgres(ctx, c.Postgres, "", testserver.Durable())
	if err != nil {
		return ConsumeResult{}, err
	}
	defer func() { _ = pg.Close() }()
	pool, err := pgxpool.New(ctx, pg.URL)
	if err != nil {
		return ConsumeResult{}, err
	}
	defer pool.Close()
	if err := errors.Join(member.Prepare(ctx, pool), makeEffects(ctx, pool)); err != nil {
		return ConsumeResult{}, err
	}
	f, err := openFeed(ctx, c.Broker)
	if err != nil {
		return ConsumeResult{}, err
	}
	defer f.Close()
	per := max(c.Messages/c.Keys, 1)
	rnd := rand.New(rand.NewPCG(c.Seed, 6))
	all := records(rnd, c.Keys, per)
	say("seed %d: publishing %d records of %d messages", c.Seed, len(all), c.Keys*per)
	if err := f.fill(ctx, all); err != nil {
		return ConsumeResult{}, err
	}
	h, err := newHerd(member.Config{
		Broker: c.Broker, URL: f.url, Topic: topic, Name: consumerName, DSN: pg.URL, Order: c.Order, Batch: c.Batch, AckWait: c.AckWait,
		Trouble: c.Trouble, Log: c.Log,
	})
	if err != nil {
		return ConsumeResult{}, err
	}
	r := &consumeRun{c: c, pg: pg, pool: pool, feed: f, herd: h, rnd: rnd, want: c.Keys * per, per: per}
	return r.run(ctx, len(all))
}

// makeEffects makes the table of effects, which has no constraint against wrong ones.
func makeEffects(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `CREATE TABLE effect (at bigserial PRIMARY KEY, key text NOT NULL, version bigint NOT NULL, id text NOT NULL);
		CREATE TABLE ended (key text PRIMARY KEY)`)
	return err
}

// consumeRun is the state of a campaign.
type consumeRun struct {
	c         ConsumeConfig
	pg        *testserver.Postgres
	pool      *pgxpool.Pool
	feed      *feed
	herd      *herd
	rnd       *rand.Rand
	want, per int // messages, and messages per key
	regulars  []*consuming

	restarts, rebalances, freezes int
}

func (r *consumeRun) run(ctx context.Context, published int) (ConsumeResult, error) {
	began := time.Now()
	defer r.end()
	for range r.c.Members {
		p, err := r.herd.join()
		if err != nil {
			return ConsumeResult{}, err
		}
		r.regulars = append(r.regulars, p)
	}
	if err := r.disturb(ctx); err != nil {
		return ConsumeResult{}, err
	}
	if err := r.drained(ctx); err != nil {
		say("run incomplete: %v", err) // the judge counts the missing effects
	}
	took := time.Since(began)
	r.end()
	res, err := r.judge(ctx)
	if err != nil {
		return res, err
	}
	if res.Unread, err = r.feed.unread(ctx); err != nil {
		return res, err
	}
	res.Broker, res.Order, res.Messages, res.Published, res.Seed = r.c.Broker, r.c.Order, r.want, published, r.c.Seed
	res.Kills, res.Exits, res.RSS = r.herd.kills, r.herd.exits, r.herd.rss
	res.DBRestarts, res.Rebalances, res.Freezes = r.restarts, r.rebalances, r.freezes
	res.Memory = remember(r.herd.sizes)
	res.Seconds, res.Rate = took.Seconds(), float64(r.want)/took.Seconds()
	res.OK = res.Missing+res.Double+res.Stale+res.Ahead+res.Dead+res.Stashed+res.Unread == 0 && res.Effects > 0
	return res, r.herd.trouble()
}

func (r *consumeRun) end() {
	for _, p := range r.regulars {
		r.herd.leave(p)
	}
	r.regulars = nil
	r.herd.wg.Wait()
}

// effects returns the number of committed effects, -1 while the database is unreachable.
// It also returns whether each key's last version is among them.
func (r *consumeRun) effects(ctx context.Context) (n int, last bool) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var keys int
	err := r.pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT key) FILTER (WHERE version = $1) FROM effect", r.per).Scan(&n, &keys)
	if err != nil {
		return -1, false
	}
	return n, keys == r.c.Keys
}

// reached returns the number of committed effects and whether it is at least n, or final:
// under "latest" no effect follows the last version of its key.
func (r *consumeRun) reached(ctx context.Context, n int) (int, bool) {
	now, last := r.effects(ctx)
	return now, now >= n || last && r.c.Order == "latest"
}

// reach waits until n effects are committed, or until their number is final.
func (r *consumeRun) reach(ctx context.Context, n int) error {
	now := 0
	return waitFor(ctx, 3*time.Minute, func() int { return now }, func() (ok bool, _ error) {
		r.herd.weigh()
		now, ok = r.reached(ctx, n)
		return ok, r.herd.trouble()
	})
}

// disturb causes all faults in random order, spread over the messages. Under "latest",
// which drops some messages, the faults come earlier.
func (r *consumeRun) disturb(ctx context.Context) error {
	var acts []func(context.Context) error
	for range r.c.Kills {
		acts = append(acts, func(context.Context) error { r.herd.kill(r.rnd); return nil })
	}
	for range r.c.DBRestarts {
		acts = append(acts, r.restartDatabase)
	}
	for range r.c.Rebalances {
		acts = append(acts, r.rebalance)
	}
	for range r.c.Freezes {
		acts = append(acts, r.freeze)
	}
	r.rnd.Shuffle(len(acts), func(i, j int) { acts[i], acts[j] = acts[j], acts[i] })
	span := r.want * 9 / 10
	if r.c.Order == "latest" {
		span = r.want / 4
	}
	for i, act := range acts {
		if err := r.reach(ctx, span*(i+1)/(len(acts)+1)); err != nil {
			return fmt.Errorf("before fault %d of %d: %w", i+1, len(acts), err)
		}
		if err := pause(ctx, time.Duration(r.rnd.IntN(200))*time.Millisecond); err != nil {
			return err
		}
		if err := act(ctx); err != nil {
			return err
		}
		say("fault %d of %d done", i+1, len(acts))
	}
	return nil
}

// restartDatabase crashes the database, or shuts it down, and starts it again.
func (r *consumeRun) restartDatabase(ctx context.Context) error {
	end := r.pg.Kill
	if r.restarts%2 == 1 {
		end = r.pg.Stop
	}
	r.restarts++
	if err := end(); err != nil {
		return err
	}
	if err := pause(ctx, time.Duration(r.rnd.IntN(1500))*time.Millisecond); err != nil {
		return err
	}
	return r.pg.Restart()
}

// rebalance lets another consumer join, and leave while messages flow.
func (r *consumeRun) rebalance(ctx context.Context) error {
	p, err := r.herd.join()
	if err != nil {
		return err
	}
	r.rebalances++
	defer r.herd.leave(p)
	now, _ := r.effects(ctx)
	return r.reach(ctx, min(max(now, 0)+max(r.want/100, 20), r.want))
}

// freeze suspends a consumer, or the broker, for longer than most timeouts.
func (r *consumeRun) freeze(ctx context.Context) error {
	r.freezes++
	lasts := time.Second + time.Duration(r.rnd.IntN(2000))*time.Millisecond
	if r.freezes%2 == 0 {
		if err := r.feed.Freeze(); err != nil {
			return err
		}
		return errors.Join(pause(ctx, lasts), r.feed.Thaw())
	}
	thaw := r.herd.freeze(r.rnd)
	defer thaw()
	return pause(ctx, lasts)
}

// drained waits until every message has its effect, under "latest" the last one of each
// key, and the broker has no message left.
func (r *consumeRun) drained(ctx context.Context) error {
	if err := r.reach(ctx, r.want); err != nil {
		return err
	}
	if r.feed.Lag == nil {
		return r.quiet(ctx)
	}
	least := 1 << 62
	return waitFor(ctx, time.Minute, func() int { return -least }, func() (bool, error) {
		left, err := r.feed.left(ctx)
		if err != nil {
			return false, err
		}
		least = min(least, left)
		return left == 0, r.herd.trouble()
	})
}

// quiet waits until no effect has come for longer than a record can be hidden.
func (r *consumeRun) quiet(ctx context.Context) error {
	for last, since := -1, time.Now(); time.Since(since) < 3*r.feed.Lease; {
		if now, _ := r.effects(ctx); now != last {
			last, since = now, time.Now()
		}
		if err := errors.Join(pause(ctx, 200*time.Millisecond), r.herd.trouble()); err != nil {
			return err
		}
	}
	return nil
}

// judge counts the effects in plain SQL.
func (r *consumeRun) judge(ctx context.Context) (res ConsumeResult, err error) {
	missing := `SELECT count(*) FROM generate_series(0, $1::int - 1) k, generate_series(1, $2::int) v
		WHERE NOT EXISTS (SELECT 1 FROM effect WHERE key = 'k' || k AND version = v)`
	if r.c.Order == "latest" {
		missing = `SELECT count(*) FROM generate_series(0, $1::int - 1) k
		WHERE NOT EXISTS (SELECT 1 FROM effect WHERE key = 'k' || k AND version = $2::int)`
	}
	if _, err := r.pool.Exec(ctx, "CREATE INDEX IF NOT EXISTS effect_of_key ON effect (key, version); ANALYZE effect"); err != nil {
		return res, err
	}
	if err := r.pool.QueryRow(ctx, missing, r.c.Keys, r.per).Scan(&res.Missing); err != nil {
		return res, err
	}
	err = r.pool.QueryRow(ctx, "SELECT count(*), count(*) - count(DISTINCT (key, version)) FROM effect").Scan(&res.Effects, &res.Double)
	if err != nil {
		return res, err
	}
	var stale, ahead int
	err = r.pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE version <= before), count(*) FILTER (WHERE version > before + 1)
		FROM (SELECT version, coalesce(max(version) OVER (PARTITION BY key ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM effect) e`).Scan(&stale, &ahead)
	if err != nil {
		return res, err
	}
	if r.c.Order != "any" {
		res.Stale = stale
	}
	if r.c.Order == "contiguous" {
		res.Ahead = ahead
	}
	err = r.pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM postrider.inbox_attempt WHERE state = 'dead'), (SELECT count(*) FROM postrider.inbox_stash)").Scan(&res.Dead, &res.Stashed)
	return res, err
}

// beMember runs a consumer until SIGTERM.
func beMember(ctx context.Context) int {
	if err := member.Run(ctx, os.Getenv(member.Env)); err != nil {
		fmt.Fprintln(os.Stderr, "proof: consumer:", err)
		return 2
	}
	return 0
}
