package main

import (
	"strconv"
	"time"
)

// perMillion returns CPU seconds per million events.
func perMillion(cpu time.Duration, events int) float64 {
	return round(cpu.Seconds() / float64(events) * 1e6)
}

func rate(events int, took time.Duration) float64 {
	if took <= 0 {
		return 0 // the way did not run
	}
	return round(float64(events) / took.Seconds())
}

// round keeps four significant digits; the others are noise.
func round(x float64) float64 {
	v, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 5, 64), 64)
	if err != nil {
		return x
	}
	return v
}
