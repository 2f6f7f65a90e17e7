package daemon

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// metrics turns the relay's figures and the store's status into Prometheus
// series. The status is asked for at a scrape, and at most once per maxAge:
// a scraper must not be able to load the database.
type metrics struct {
	admin  ops.Admin
	maxAge time.Duration
	stats  func() relay.Stats
	health func() relay.Health
	wake   func() store.Wake // nil: the store learns of messages in one way only

	others []prometheus.Collector

	deliver prometheus.Histogram
	settle  prometheus.Histogram

	mu     sync.Mutex
	status ops.Status
	asked  time.Time
	up     bool

	// Descriptions of the collected series.
	delivered, deliveredBytes, settled, attempts, parkedTotal, lanesLost         *prometheus.Desc
	lapses, leases, lanes, instances, paused, pipePaused, braked, inFlight, down *prometheus.Desc
	alive, ready, statusUp, wakes                                                *prometheus.Desc
	pending, lag, lanePending, laneLag, laneParked, parked, dbInstances          *prometheus.Desc
}

// newMetrics makes the series of one relay, all of which carry the labels.
func newMetrics(ad ops.Admin, labels prometheus.Labels, maxAge time.Duration) *metrics {
	d := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("postrider_"+name, help, variable, labels)
	}
	h := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "postrider_" + name, Help: help, ConstLabels: labels,
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		})
	}
	return &metrics{
		admin: ad, maxAge: maxAge,
		deliver: h("deliver_duration_seconds", "Time of one call to the broker."),
		settle:  h("settle_duration_seconds", "Time of one settlement in the database."),

		delivered:      d("delivered_total", "Messages acknowledged by the broker to this relay."),
		deliveredBytes: d("delivered_bytes_total", "Bytes of the messages acknowledged by the broker."),
		settled:        d("settled_total", "Messages recorded as delivered by this relay."),
		attempts:       d("delivery_errors_total", "Deliveries that did not succeed, by class.", "class"),
		parkedTotal:    d("parked_total", "Records set aside by this relay, by state.", "state"),
		lanesLost:      d("lanes_lost_total", "Lanes that another relay took while this one thought to hold them."),
		lapses:         d("lease_lapses_total", "Times that no heartbeat was answered before the lease of this relay's lanes ran out."),
		leases:         d("leases", "Lanes that this relay holds now."),
		lanes:          d("lanes", "Lanes of the outbox."),
		instances:      d("instances", "Live relays as of this relay's last lease."),
		paused:         d("lanes_paused", "Lanes that read no more: too many keys or records are set aside, or a person has paused them."),
		pipePaused:     d("pipe_paused", "1 while a person has paused the pipe."),
		braked:         d("destinations_braked", "Destinations held because they reject everything."),
		inFlight:       d("deliveries_in_flight", "Calls to the broker that have not returned."),
		down:           d("down", "1 for each part that does not work now.", "part"),
		alive:          d("alive", "1 while the relay's event loop moves."),
		ready:          d("ready", "1 while leases are fresh, store and broker work, and not every known destination is down."),
		wakes:          d("wake", "1 for the way by which the relay learns of messages now: poll, listen or log.", "by"),
		statusUp:       d("status_up", "1 when the database answered the last question for the series below."),
		pending:        d("pending_messages", "Committed messages that are not settled."),
		lag:            d("lag_seconds", "Age of the oldest message that is neither sent nor dead; a scheduled one counts from its time on. An upper bound while the first messages of a lane, as many as are counted, are all scheduled for later."),
		lanePending:    d("lane_pending_messages", "Committed messages of a lane that are not settled.", "lane"),
		laneLag:        d("lane_lag_seconds", "Age of a lane's oldest message that is neither sent nor dead.", "lane"),
		laneParked:     d("lane_parked_messages", "Records of a lane that are set aside.", "lane"),
		parked:         d("parked_messages", "Records set aside, by state.", "state"),
		dbInstances:    d("relays_alive", "Relays whose heartbeat the database counts as alive."),
	}
}

// keep adds the series of the outbox's housekeeping; k may be nil.
func (m *metrics) keep(k *admin.Keeper, labels prometheus.Labels) {
	if k != nil {
		m.others = append(m.others, newKeeperMetrics(k, labels))
	}
}

func (m *metrics) observer() *relay.Observer {
	return &relay.Observer{
		Delivered: func(i relay.DeliveredInfo) { m.deliver.Observe(i.Took.Seconds()) },
		Settled:   func(i relay.SettledInfo) { m.settle.Observe(i.Took.Seconds()) },
	}
}

// of says whose series these are.
func (m *metrics) of(r *relay.Relay) { m.stats, m.health = r.Stats, r.Health }

// newRegistry has the series of the process; register adds those of its relays.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

func register(reg *prometheus.Registry, units []*unit) {
	for _, u := range units {
		reg.MustRegister(u.meter, u.meter.deliver, u.meter.settle)
		reg.MustRegister(u.meter.others...)
	}
}

// metricsHandler is the endpoint.
func metricsHandler(reg *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
}

// Describe makes this an unchecked collector: its series depend on what is there.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect sends all series.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	c := series{ch}
	m.collectRelay(c)
	m.collectStatus(c)
}

func (m *metrics) collectRelay(c series) {
	s, h := m.stats(), m.health()
	c.counter(m.delivered, float64(s.Delivered))
	c.counter(m.deliveredBytes, float64(s.DeliveredBytes))
	c.counter(m.settled, float64(s.Settled))
	for class, n := range s.Errors {
		c.counter(m.attempts, float64(n), class)
	}
	for state, n := range s.Parked {
		c.counter(m.parkedTotal, float64(n), state)
	}
	c.counter(m.lanesLost, float64(s.LanesLost))
	c.counter(m.lapses, float64(s.LeaseLapses))
	c.gauge(m.leases, float64(len(s.Lanes)))
	c.gauge(m.lanes, float64(s.LanesTotal))
	c.gauge(m.instances, float64(s.Instances))
	c.gauge(m.paused, float64(len(s.PausedLanes)))
	c.gauge(m.pipePaused, truth(s.Paused))
	c.gauge(m.braked, float64(len(s.Braked)))
	c.gauge(m.inFlight, float64(s.DeliveriesInFlight))
	c.gauge(m.alive, truth(h.Alive))
	c.gauge(m.ready, truth(h.Ready))
	if m.wake != nil {
		using := m.wake().Using
		for _, way := range []string{"poll", "listen", "log"} {
			c.gauge(m.wakes, truth(way == using), way)
		}
	}
	// The parts that always exist have a series also while they work, so that
	// an alert can tell "works" from "not scraped".
	parts := map[string]float64{"store": 0, "sink": 0}
	for part := range s.Down {
		parts[part] = 1
	}
	for part, v := range parts {
		c.gauge(m.down, v, part)
	}
}

func (m *metrics) collectStatus(c series) {
	s, up := m.look()
	c.gauge(m.statusUp, truth(up))
	if !up {
		return // an old lag is worse than none: it looks healthy
	}
	c.gauge(m.pending, float64(s.Pending))
	c.gauge(m.lag, s.Lag.Seconds())
	for _, state := range []store.State{store.Scheduled, store.Retry, store.Waiting, store.Dead} {
		c.gauge(m.parked, float64(s.Parked[state.String()]), state.String())
	}
	alive := 0
	for _, i := range s.Instances {
		if i.Alive {
			alive++
		}
	}
	c.gauge(m.dbInstances, float64(alive))
	for _, l := range s.Lanes {
		lane := strconv.Itoa(int(l.Lane))
		c.gauge(m.lanePending, float64(l.Pending), lane)
		c.gauge(m.laneLag, l.Lag.Seconds(), lane)
		c.gauge(m.laneParked, float64(l.Parked), lane)
	}
}

// look returns the status, asked for now unless the last answer is fresh.
func (m *metrics) look() (ops.Status, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.asked.IsZero() && time.Since(m.asked) < m.maxAge {
		return m.status, m.up
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	status, err := m.admin.Status(ctx)
	m.status, m.up, m.asked = status, err == nil, time.Now()
	return m.status, m.up
}

type series struct{ ch chan<- prometheus.Metric }

func (c series) counter(d *prometheus.Desc, v float64, labels ...string) {
	c.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (c series) gauge(d *prometheus.Desc, v float64, labels ...string) {
	c.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
