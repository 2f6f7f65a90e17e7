package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/postrider/postrider/internal/lab/brokers"
)

// Result has the checker's findings. Delivered counts every copy.
type Result struct {
	OK            bool    `json:"ok"`
	Broker        string  `json:"broker"`
	Committed     int     `json:"committed"`
	Delivered     int     `json:"delivered"`
	Duplicates    int     `json:"duplicates"`
	Lost          int     `json:"lost"`
	Phantom       int     `json:"phantom"`
	OutOfOrder    int     `json:"out_of_order"`
	Kills         int     `json:"kills"` // of relays
	BrokerKills   int     `json:"broker_kills"`
	BrokerFreezes int     `json:"broker_freezes"`
	StoreKills    int     `json:"store_kills"`
	RelayFreezes  int     `json:"relay_freezes"`
	InFlight      int     `json:"in_flight"`          // kills and freezes of the broker while messages moved
	LogActs       int     `json:"log_acts,omitempty"` // disturbances of the log that wakes the relays
	LogRead       int     `json:"log_read,omitempty"` // looks at which a relay read it
	Parked        int     `json:"parked"`             // records set aside at the end
	MaxRewind     int     `json:"max_rewind"`         // largest step back of a key after a kill
	Rollbacks     int     `json:"rollbacks"`
	Seconds       float64 `json:"seconds"`
}

// checker follows each key's dense versions 1, 2, 3 ... in the broker's log: a version
// may be repeated, but must be at most one above the highest so far.
type checker struct {
	mu        sync.Mutex
	delivered int
	distinct  int
	highest   map[string]int
	places    map[string]string // of the highest versions
	steps     map[string][]step
	disorder  int
	rewind    int
	alien     int
}

// step is a step ahead of a key, for a person.
type step struct {
	from, to   int
	left, came string // their places
	later      []string
}

func newChecker() *checker {
	return &checker{highest: make(map[string]int), places: make(map[string]string), steps: make(map[string][]step)}
}

// add takes one record in the order of the broker's log.
func (c *checker) add(r brokers.Record) {
	key, version, err := parse(r.Payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delivered++
	high := c.highest[key]
	switch {
	case err != nil:
		c.alien++
		return
	case version == high+1:
		c.distinct++
	case version > high+1:
		c.disorder++
		c.distinct += version - high
		c.steps[key] = append(c.steps[key], step{from: high, to: version, left: c.places[key], came: r.Place})
	default:
		c.rewind = max(c.rewind, high-version+1)
		for i := range c.steps[key] {
			if s := &c.steps[key][i]; s.from < version && version < s.to {
				s.later = append(s.later, fmt.Sprintf("version %d (%s)", version, r.Place))
			}
		}
		return
	}
	c.highest[key], c.places[key] = version, r.Place
}

// findings describes each step ahead, at most n.
func (c *checker) findings(n int) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(c.steps)) {
		for _, s := range c.steps[key] {
			if len(all) == n {
				return all
			}
			later := "none of those between later"
			if len(s.later) > 0 {
				later = "later " + strings.Join(s.later, ", ")
			}
			all = append(all, fmt.Sprintf("key %s: version %d (%s) stored after version %d (%s), %s", key, s.to, s.came, s.from, s.left, later))
		}
	}
	return all
}

// judge compares the log with the truth, the highest committed version of each key.
func (c *checker) judge(truth map[string]int) Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := Result{Delivered: c.delivered, OutOfOrder: c.disorder, Phantom: c.alien, MaxRewind: c.rewind}
	for key, version := range truth {
		r.Committed += version
		r.Lost += max(0, version-c.highest[key])
	}
	for key, version := range c.highest {
		r.Phantom += max(0, version-truth[key])
	}
	r.Duplicates = c.delivered - c.alien - c.distinct
	r.OK = r.Lost == 0 && r.Phantom == 0 && r.OutOfOrder == 0 && r.Committed > 0
	return r
}

// parse returns key and version of a payload "key:version:filler".
func parse(payload []byte) (string, int, error) {
	f := strings.SplitN(string(payload), ":", 3)
	if len(f) != 3 {
		return "", 0, fmt.Errorf("no writer wrote this record")
	}
	version, err := strconv.Atoi(f[1])
	return f[0], version, err
}
