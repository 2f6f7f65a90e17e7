package sim

import (
	"slices"
	"strings"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
)

// mutant breaks one rule: in the database, in the sink, or at the border of the
// core, where an answer is changed so that the core does what a core without
// the rule would do. The zero value breaks nothing.
type mutant struct {
	name   string
	defect memstore.Defect
	family memstore.Family // where the defect exists
	both   bool            // in all families
	ahead  bool            // where nodes read ahead
	seen   uint64          // a seed below 2,000 that caught it once

	noPrefix     bool   // the sink takes a message behind one of its key that failed
	ackEarly     bool   // everything counts as acknowledged when it is sent
	unknownOK    bool   // unknown counts as acknowledged
	unknownDead  bool   // unknown counts as rejected
	partialOK    bool   // one acknowledgement counts for the whole batch
	outageFailed bool   // an outage burns an attempt
	outageMute   bool   // an outage is told as if nothing had been tried
	wallClock    bool   // leases are judged by the node's wall clock
	deafToJumps  bool   // nobody compares the clocks
	ignoreLost   bool   // the core is not told which lanes it lost
	settleErrOK  bool   // a settlement without an answer counts as done
	wideWindow   bool   // sending continues without regard to what is settled
	deadFlows    bool   // a dead head does not hold its key
	deafToDeaths bool   // nobody is told of owners that ended
	neverSingled bool   // no suspect has an attempt when it is read, so none is sent alone
	marksLost    bool   // attempts at suspects are not recorded
	marksStay    bool   // an answer takes no attempt at a suspect back
	onePlace     bool   // all topics count as one place
	aheadSettled bool   // what was read ahead counts as read from the table
	without      string // the relay's header that does not arrive
	wide         bool   // in wide worlds
	hasty        bool   // nothing limits the rate
	stalls       bool   // the log is not read while a destination is down
	deafToActs   bool   // nobody is told of acts while a destination is down
	muteEnds     bool   // nobody is told of the end of an outage that nobody tried
	saysTwice    bool   // an outage is told of again
	countsTwice  bool   // acknowledgements are counted twice
	forgetsParks bool   // parked records are missing from the count of a settlement
	restless     bool   // an idle relay asks all the time
}

// mutants are the rules of failure-modes 11.5 that a relay, a store or a sink
// can break, and more of their kind.
func mutants() []mutant {
	all := []mutant{
		{name: "bare cursor", defect: memstore.BareCursor},
		{name: "order by xid", defect: memstore.XidOrder},
		{name: "inflight ignored", defect: memstore.IgnoreInflight},
		{name: "inflight not saved", defect: memstore.InflightNotSaved},
		{name: "ids above xmax left out", defect: memstore.OnlyXip},
		{name: "sequence read after the page", defect: memstore.SequenceLate},
		{name: "holes: bare cursor", defect: memstore.NoHoles},
		{name: "holes given up after a time", defect: memstore.HolesExpire},
		{name: "holes: no barrier", defect: memstore.NoBarrier},
		{name: "holes: no net below the barrier", defect: memstore.NoNet},
		{name: "holes: probe before page", defect: memstore.ProbeFirst},
		{name: "no lane lease", defect: memstore.SharedLease},
		{name: "lease ignores the owner", defect: memstore.IgnoreLease},
		{name: "local wall clock for leases (store)", defect: memstore.ClientClock},
		{name: "epoch check removed", defect: memstore.NoFence, ignoreLost: true},
		{name: "repeated settlement applied twice", defect: memstore.RepeatTwice},
		{name: "dead letters in a second transaction", defect: memstore.SplitSettle},
		{name: "retry and discard beside the owner", defect: memstore.ActAtOnce},
		{name: "lane = hash % live instances", defect: memstore.LaneByInstances},
		{name: "reads ahead of the commit", defect: memstore.AheadOfCommit},
		{name: "parked records forgotten", defect: memstore.LoseParked},
		{name: "captured keys forgotten at take-over", defect: memstore.ForgetCaptured},
		{name: "followers due with their head", defect: memstore.DueIgnoresHead},
		{name: "prefix property off", noPrefix: true},
		{name: "settle before the ack", ackEarly: true},
		{name: "unknown = success", unknownOK: true},
		{name: "unknown = dead letter", unknownDead: true},
		{name: "partial batch = all ok", partialOK: true},
		{name: "outage burns attempts", outageFailed: true},
		{name: "an outage tells nothing of a message", outageMute: true},
		{name: "local wall clock for leases (relay)", wallClock: true},
		{name: "clock jumps go unnoticed", deafToJumps: true},
		{name: "settle error = success", settleErrOK: true},
		{name: "window without a bound", wideWindow: true},
		{name: "dead head does not block", deadFlows: true},
		{name: "owners that ended are forgotten", deafToDeaths: true},
		{name: "suspects are never singled", neverSingled: true},
		{name: "attempts at suspects are not recorded", marksLost: true},
		{name: "an answer takes no attempt back", marksStay: true, seen: 1330},
		{name: "codes of suspects forgotten (store)", defect: memstore.ForgetCode},
		{name: "an acknowledgement elsewhere proves a message guilty", onePlace: true},
		{name: "gaps forgotten (store)", defect: memstore.ForgetGaps},
		{name: "a retried dead letter does not hold its key", defect: memstore.RetryFreesKey},
		{name: "a key's due records come backwards", defect: memstore.DuePageReversed},
		{name: "due behind a later retry or a dead head", defect: memstore.DueBehindDead, seen: 769},
		{name: "gap header lost", without: envelope.Gap},
		{name: "generation header lost", without: envelope.Generation},
		{name: "what people paused is forgotten", defect: memstore.ForgetHolds},
		{name: "a key is released before its queue is empty", defect: memstore.LastTooEarly},
		{name: "a record that is due in a moment is not announced", defect: memstore.NextDueSkips},
		{name: "scheduled by the relay's clock", defect: memstore.DueIgnoresNotBefore, seen: 327},
		{name: "ahead: what ran when the stream began is ignored", defect: memstore.AheadWithoutBase, ahead: true},
		{name: "ahead: large transactions are skipped", defect: memstore.AheadSkips, ahead: true},
		{name: "ahead: although more stands behind a read", defect: memstore.AheadOfPages, ahead: true},
		{name: "ahead: what a read has brought", defect: memstore.AheadTwice, ahead: true},
		{name: "ahead: across streams", defect: memstore.AheadAfterBreak, ahead: true},
		{name: "ahead: by the log of another history", defect: memstore.AheadOfHistory, ahead: true, seen: 445},
		{name: "ahead: behind a lost answer", defect: memstore.AheadUnnumbered, ahead: true, seen: 191},
		{name: "ahead: taken for the table's", aheadSettled: true, ahead: true},
		{name: "no limit of the rate", hasty: true, wide: true, seen: 19},
		{name: "messages wait for the end of another outage", stalls: true, wide: true, seen: 17},
		{name: "acts wait for the end of an outage", deafToActs: true, wide: true, seen: 17},
		{name: "an outage that nobody tries does not end", muteEnds: true, seen: 96},
		{name: "an outage is told of twice", saysTwice: true},
		{name: "acknowledgements are counted twice", countsTwice: true},
		{name: "parked records are not counted", forgetsParks: true},
		{name: "an idle relay asks all the time", restless: true, seen: 194},
	}
	for i := range all {
		all[i].both = all[i].ahead || all[i].defect == memstore.None || all[i].defect > memstore.ProbeFirst
		if all[i].defect > memstore.SequenceLate && !all[i].both {
			all[i].family = memstore.Holes
		}
	}
	return all
}

// shared reports whether lanes are handed to several instances on purpose, so
// that the check of leases would only repeat the defect.
func (m mutant) shared() bool { return m.defect == memstore.SharedLease }

// delivered changes what a core learns of a Deliver.
func (m mutant) delivered(errs []error) []error {
	out := make([]error, len(errs))
	failed, acked := 0, 0
	for i, err := range errs {
		if err == nil {
			acked++
			continue
		}
		out[i] = m.verdict(err)
		if out[i] != nil {
			failed++
		}
	}
	if failed == 0 || m.partialOK && acked > 0 {
		return nil
	}
	return out
}

func (m mutant) verdict(err error) error {
	e := broker.Classify(err)
	switch {
	case e.Class == broker.ClassUnknown && m.unknownOK:
		return nil
	case e.Class == broker.ClassUnknown && m.unknownDead:
		return broker.Rejected(err, "unknown", "")
	case e.Class == broker.ClassOutage && m.outageMute:
		return broker.ErrNotTried
	case e.Class == broker.ClassOutage && m.outageFailed:
		return broker.Failed(err, e.Code, e.Destination)
	}
	return err
}

// read changes what a core learns of a Read.
func (m mutant) read(batches []store.Batch) []store.Batch {
	for i := range batches {
		batches[i].Ahead = batches[i].Ahead && !m.aheadSettled
	}
	if m.neverSingled {
		for _, b := range batches {
			for i := range b.Meta {
				if strings.HasPrefix(b.Meta[i].Code, store.CodeCrashed) {
					b.Meta[i].Attempts = 0
				}
			}
		}
	}
	return batches
}

// settling changes what a core settles. marks are the attempts at suspects by number.
func (m mutant) settling(settlements []store.Settlement, marks map[int64]int) []store.Settlement {
	if !m.marksLost && !m.marksStay {
		return settlements
	}
	settlements = slices.Clone(settlements)
	for i := range settlements {
		st := &settlements[i]
		st.Park = slices.Clone(st.Park)
		if m.marksLost {
			st.Park = slices.DeleteFunc(st.Park, isMark)
			continue
		}
		for j := range st.Park {
			p := &st.Park[j]
			switch {
			case isMark(*p):
				marks[p.Seq] = max(marks[p.Seq], p.Attempts)
			case p.State == store.Retry && p.Class != broker.ClassFailed.String() && marks[p.Seq] > 0:
				p.Code, p.Attempts = store.CodeCrashed, marks[p.Seq]
			}
		}
	}
	return settlements
}

// isMark reports whether a park records an attempt at a suspect.
func isMark(p store.Park) bool {
	return p.State == store.Retry && p.Attempts > 0 && strings.HasPrefix(p.Code, store.CodeCrashed)
}

// settled changes what a core learns of a Settle.
func (m mutant) settled(ev port.Settled) port.Settled {
	if m.settleErrOK {
		ev.Err = nil
	}
	return ev
}

// fact changes what observers of a core are told.
func (m mutant) fact(f port.Fact) port.Fact {
	switch f := f.(type) {
	case port.HealthChanged:
		if m.muteEnds && f.Untried {
			return nil
		}
		f.Down = f.Down || m.saysTwice
		return f
	case port.DeliveryDone:
		if m.countsTwice {
			f.Acked *= 2
		}
		return f
	case port.SettleDone:
		if m.forgetsParks {
			f.Parked = 0
		}
		return f
	}
	return f
}
