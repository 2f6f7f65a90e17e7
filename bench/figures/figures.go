// Package figures turns what was measured into the figures of a report.
package figures

import (
	"math"
	"slices"
	"strconv"
	"time"
)

// PerMillion returns CPU seconds per million events.
func PerMillion(cpu time.Duration, events int) float64 {
	return Round(cpu.Seconds() / float64(events) * 1e6)
}

// Rate returns events per second.
func Rate(events int, took time.Duration) float64 {
	if took <= 0 {
		return 0 // the way did not run
	}
	return Round(float64(events) / took.Seconds())
}

// Round keeps five significant digits; the others are noise.
func Round(x float64) float64 {
	v, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 5, 64), 64)
	if err != nil {
		return x
	}
	return v
}

// Paired is the ratio of the two drains of a round.
type Paired struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	// Low and High hold the true median with a probability of 95 %, whatever the distribution;
	// both are 0 below six rounds.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Pairs summarizes the ratios of all rounds.
func Pairs(ratios []float64) Paired {
	v := slices.Sorted(slices.Values(ratios))
	p := Paired{Median: Round(Middle(v)), Least: Round(v[0]), Most: Round(v[len(v)-1])}
	// The k-th value from each end: below it the median is with the probability that fewer than
	// k of n coins show heads.
	n, k, below, coins := len(v), 0, 0.0, math.Pow(0.5, float64(len(v)))
	for below+coins <= 0.025 {
		below += coins
		coins *= float64(n-k) / float64(k+1)
		k++
	}
	if k > 0 {
		p.Low, p.High = Round(v[k-1]), Round(v[n-k])
	}
	return p
}

// Verdict compares the interval with the least ratio that is accepted.
func (p Paired) Verdict(least float64) string {
	switch {
	case p.High == 0:
		return "undecided: use --rounds 6 or more"
	case p.Low >= least:
		return "holds"
	case p.High < least:
		return "broken"
	}
	return "undecided: the interval holds the bar; use more rounds, or a quieter machine"
}

// VerdictMost compares the interval with the highest ratio that is accepted.
func (p Paired) VerdictMost(most float64) string {
	if p.High == 0 {
		return p.Verdict(0)
	}
	return Paired{Low: 1 / p.High, High: 1 / p.Low}.Verdict(1 / most)
}

// Middle returns the median, and sorts the values.
func Middle(v []float64) float64 {
	slices.Sort(v)
	return Round(v[len(v)/2])
}
