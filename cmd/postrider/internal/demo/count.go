package demo

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/store/pgstore"
)

// copyAt is one message in the broker, read without any of our own packages:
// the count must not share the mistakes of what it counts.
type copyAt struct {
	Ref, Order string
	at         time.Time
}

// decodeCopy reads a payload; one that cannot be read has no Ref and counts as a phantom.
func decodeCopy(payload []byte, at time.Time) copyAt {
	var body struct{ Ref, Order string }
	_ = json.Unmarshal(payload, &body)
	return copyAt{Ref: body.Ref, Order: body.Order, at: at}
}

// tables are the shop's and the warehouse's tables, read by plain SQL.
type tables struct{ shop, house *sql.DB }

func openTables(shop, house string) (*tables, error) {
	t := &tables{}
	var err error
	if t.shop, _, err = open.SQL(shop, customers); err != nil {
		return nil, err
	}
	if t.house, _, err = open.SQL(house, customers); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *tables) close() {
	_ = t.shop.Close()
	_ = t.house.Close()
}

// committed counts the steps that the order table knows.
func (t *tables) committed(ctx context.Context) (int, error) {
	return one(ctx, t.shop, `SELECT count(placed) + count(paid) + count(shipped) FROM orders`)
}

// effects counts the movements that the stock has seen.
func (t *tables) effects(ctx context.Context) (int, error) {
	return one(ctx, t.house, `SELECT coalesce(sum(moves), 0) FROM stock`)
}

func one(ctx context.Context, db *sql.DB, query string) (int, error) {
	var n int
	if err := db.QueryRowContext(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("demo: count: %w", err)
	}
	return n, nil
}

// steps maps the ref of every committed step to its place in its order, 1 to 3.
func (t *tables) steps(ctx context.Context) (steps map[string]int, orders int, err error) {
	rows, err := t.shop.QueryContext(ctx, `SELECT placed, coalesce(paid, ''), coalesce(shipped, '') FROM orders`)
	if err != nil {
		return nil, 0, fmt.Errorf("demo: read the orders: %w", err)
	}
	defer rows.Close() // Err is asked below
	steps = map[string]int{}
	for rows.Next() {
		var refs [3]string
		if err := rows.Scan(&refs[0], &refs[1], &refs[2]); err != nil {
			return nil, 0, fmt.Errorf("demo: read the orders: %w", err)
		}
		orders++
		for i, ref := range refs {
			if ref != "" {
				steps[ref] = i + 1
			}
		}
	}
	return steps, orders, rows.Err()
}

// count compares the three books: orders, broker, stock.
func (d *run) count(ctx context.Context) (Answer, error) {
	steps, orders, err := d.tables.steps(ctx)
	if err != nil {
		return Answer{}, err
	}
	copies, err := d.broker.copies(ctx)
	if err != nil {
		return Answer{}, fmt.Errorf("demo: read the broker: %w", err)
	}
	answer := compare(steps, copies)
	answer.Orders = orders
	answer.Kills, answer.KillsInFlight = d.view.counts()
	if answer.Effects, err = d.tables.effects(ctx); err != nil {
		return Answer{}, err
	}
	answer.DoubleEffects, err = one(ctx, d.tables.house,
		`SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM movements GROUP BY ref) AS m`)
	return answer, err
}

// compare counts what the broker's log says about the committed steps. The
// first copies of an order's steps must stand in the order of the steps.
func compare(steps map[string]int, copies []copyAt) Answer {
	answer := Answer{Messages: len(steps), Delivered: len(copies)}
	seen, last := map[string]bool{}, map[string]int{}
	for _, c := range copies {
		step, ok := steps[c.Ref]
		switch {
		case !ok:
			answer.Phantom++
			continue
		case seen[c.Ref]:
			answer.Duplicates++
			continue
		}
		seen[c.Ref] = true
		if step != last[c.Order]+1 {
			answer.OutOfOrder++
		}
		last[c.Order] = max(last[c.Order], step)
	}
	answer.Lost = len(steps) - len(seen)
	answer.MaxGapMS = maxGap(copies)
	return answer
}

// maxGap is the longest time in which nothing was published, in milliseconds.
func maxGap(copies []copyAt) int {
	byTime := slices.SortedFunc(slices.Values(copies), func(a, b copyAt) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	var gap time.Duration
	for i := 1; i < len(byTime); i++ {
		gap = max(gap, byTime[i].at.Sub(byTime[i-1].at))
	}
	return int(gap.Milliseconds())
}

// ownSchema gives the run a schema of its own in the user's database, for the
// outbox and for the demo's tables, and removes it at the end.
func (d *run) ownSchema(ctx context.Context, name string) error {
	u, err := url.Parse(d.set.Store)
	if err == nil && (u.Scheme == "mysql" || u.Scheme == "mariadb") {
		return d.ownDatabase(ctx, u, name)
	}
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return exit.Usagef("store %s: the demo runs on postgres://USER:PASSWORD@HOST/DATABASE, mysql://USER:PASSWORD@HOST/DATABASE or, without --store, on SQLite", redact.Place(d.set.Store))
	}
	admin := d.set.Store
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	d.set.Store, d.stock, d.set.Schema = u.String(), u.String(), name
	if err := execOnce(ctx, admin, `CREATE SCHEMA IF NOT EXISTS `+pgx.Identifier{name}.Sanitize()); err != nil {
		return exit.Withf(exit.Unreachable, "demo: make a schema: %w; check --store and that its user may create schemas", err)
	}
	if !d.opts.Keep {
		d.undo = append(d.undo, func() {
			ctx, cancel := context.WithTimeout(context.Background(), open.Timeout)
			defer cancel()
			if err := execOnce(ctx, admin, `DROP SCHEMA `+pgx.Identifier{name}.Sanitize()+` CASCADE`); err != nil {
				d.opts.Logger.Warn("demo schema left behind", "schema", name, "error", err)
			}
		})
	}
	return nil
}

// ownDatabase gives the run a database of its own on the user's server, for the outbox and
// for the demo's tables, and removes it at the end.
func (d *run) ownDatabase(ctx context.Context, u *url.URL, name string) error {
	admin := d.set.Store
	exec := func(ctx context.Context, stmt string) error {
		ctx, cancel := context.WithTimeout(ctx, open.Timeout)
		defer cancel()
		db, _, err := open.SQL(admin, 1)
		if err != nil {
			return err
		}
		defer db.Close() // nothing is lost with the pool
		_, err = db.ExecContext(ctx, stmt)
		return err
	}
	u.Path = "/" + name
	d.set.Store, d.stock = u.String(), u.String()
	if err := exec(ctx, "CREATE DATABASE `"+name+"`"); err != nil {
		return exit.Withf(exit.Unreachable, "demo: make a database: %w; check --store and that its user may create databases", err)
	}
	if !d.opts.Keep {
		d.undo = append(d.undo, func() {
			if err := exec(context.Background(), "DROP DATABASE `"+name+"`"); err != nil {
				d.opts.Logger.Warn("demo database left behind", "database", name, "error", err)
			}
		})
	}
	return nil
}

func execOnce(ctx context.Context, raw, stmt string) error {
	ctx, cancel := context.WithTimeout(ctx, open.Timeout)
	defer cancel()
	conf, err := pgstore.ParseConfig(raw)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, conf.ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) // nothing is lost with the connection
	_, err = conn.Exec(ctx, stmt)
	return err
}
