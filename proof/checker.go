package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
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
	disorder  int
	rewind    int
	alien     int
}

func newChecker() *checker { return &checker{highest: make(map[string]int)} }

// add takes one record in the order of the broker's log.
func (c *checker) add(payload []byte) {
	key, version, err := parse(payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delivered++
	high := c.highest[key]
	switch {
	case err != nil:
		c.alien++
	case version == high+1:
		c.highest[key] = version
		c.distinct++
	case version > high+1:
		c.disorder++
		c.distinct += version - high
		c.highest[key] = version
	default:
		c.rewind = max(c.rewind, high-version+1)
	}
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
