// Package ratios compares two runs that were made in turns.
package ratios

import (
	"math"
	"slices"
)

// Paired is the ratio of the two runs of a round.
type Paired struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	// Low and High hold the true median with a probability of 95 %, whatever the distribution;
	// both are 0 below six rounds.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Of summarizes the ratios of the rounds, one at least.
func Of(rounds []float64) Paired {
	v := slices.Sorted(slices.Values(rounds))
	n, k, below, coins := len(v), 0, 0.0, math.Pow(0.5, float64(len(v)))
	p := Paired{Median: round(v[n/2]), Least: round(v[0]), Most: round(v[n-1])}
	// The median lies below the k-th value from the start with the probability that fewer than
	// k of n coins show heads.
	for below+coins <= 0.025 {
		below += coins
		coins *= float64(n-k) / float64(k+1)
		k++
	}
	if k > 0 {
		p.Low, p.High = round(v[k-1]), round(v[n-k])
	}
	return p
}

func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }

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
