package console

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// chart is a line over time, drawn as the path of an SVG, with its figures as a table.
type chart struct {
	Name, Title string
	Top         string // the highest value of the scale, with its unit
	Since, Till time.Time
	Lines       []line
	Marks       []drawnMark
	Rows        []chartRow // some of the figures, the newest first
	Heads       []string   // of the table
	Empty       bool
}

type line struct{ Name, Label, Path string }

type mark struct {
	at   time.Time
	text string
}

type drawnMark struct {
	X    string
	Text string
	At   time.Time
}

type chartRow struct {
	At    time.Time
	Cells []string
}

// Size of a chart in its own units.
const (
	chartWidth  = 600
	chartHeight = 120
	rowsShown   = 12
)

// point is a value at a moment; a NaN is a gap.
type point struct {
	at    time.Time
	value float64
}

func lagChart(samples []sample, marks []mark) chart {
	c := chart{Name: "lag", Title: "Lag: age of the oldest message", Heads: []string{"Lag", "Pending"}}
	var points []point
	for _, s := range samples {
		points = append(points, point{s.at, s.lag.Seconds()})
	}
	top := c.scale(1, points)
	c.Top = age(time.Duration(top * float64(time.Second)))
	c.draw("lag", "Lag", points, top)
	c.finish(samples, marks)
	for i := len(samples) - 1; i >= 0; i -= max(len(samples)/rowsShown, 1) {
		c.Rows = append(c.Rows, chartRow{samples[i].at, []string{age(samples[i].lag), num(samples[i].pending)}})
	}
	return c
}

func rateChart(samples []sample, marks []mark) chart {
	c := chart{Name: "rate", Title: "Messages per second", Heads: []string{"In", "Out"}}
	var in, out []point
	var rows []chartRow
	for i := 1; i < len(samples); i++ {
		a, b := samples[max(i-3, 0)], samples[i] // over a few samples: less of a saw
		if b.at.Sub(samples[i-1].at) > 2*coarse {
			in, out = append(in, point{b.at, math.NaN()}), append(out, point{b.at, math.NaN()})
			continue
		}
		rateIn, rateOut := between(a, b)
		if rateOut < 0 {
			continue
		}
		out = append(out, point{b.at, rateOut})
		if rateIn < 0 {
			rateIn = math.NaN()
		}
		in = append(in, point{b.at, rateIn})
		rows = append(rows, chartRow{b.at, []string{rateText(maxNaN(rateIn)), rateText(rateOut)}})
	}
	top := c.scale(1, in, out)
	c.Top = rateText(top) + "/s"
	c.draw("in", "In", in, top)
	c.draw("out", "Out", out, top)
	c.finish(samples, marks)
	for i := len(rows) - 1; i >= 0; i -= max(len(rows)/rowsShown, 1) {
		c.Rows = append(c.Rows, rows[i])
	}
	return c
}

func maxNaN(v float64) float64 {
	if math.IsNaN(v) {
		return -1
	}
	return v
}

// scale sets the time of a chart and returns the top of its scale: 1, 2 or 5 times a power of ten.
func (c *chart) scale(least float64, lines ...[]point) float64 {
	top := least
	for _, points := range lines {
		for _, p := range points {
			if !math.IsNaN(p.value) {
				top = max(top, p.value)
			}
			if c.Since.IsZero() || p.at.Before(c.Since) {
				c.Since = p.at
			}
			if p.at.After(c.Till) {
				c.Till = p.at
			}
		}
	}
	power := math.Pow(10, math.Floor(math.Log10(top)))
	for _, step := range []float64{1, 2, 5, 10} {
		if top <= step*power {
			return step * power
		}
	}
	return 10 * power
}

func (c *chart) x(at time.Time) float64 {
	span := c.Till.Sub(c.Since).Seconds()
	if span <= 0 {
		return chartWidth
	}
	return at.Sub(c.Since).Seconds() / span * chartWidth
}

// draw adds a line. Where nobody was looking, it is interrupted.
func (c *chart) draw(name, label string, points []point, top float64) {
	var b strings.Builder
	pen := "M"
	var before time.Time
	for _, p := range points {
		gap := gapAfter
		if c.Till.Sub(p.at) > fineFor {
			gap = 2 * coarse
		}
		if math.IsNaN(p.value) || !before.IsZero() && p.at.Sub(before) > gap {
			pen = "M"
		}
		before = p.at
		if math.IsNaN(p.value) {
			continue
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", pen, c.x(p.at), chartHeight-p.value/top*(chartHeight-4)-2)
		pen = "L"
	}
	c.Lines = append(c.Lines, line{name, label, b.String()})
}

func (c *chart) finish(samples []sample, marks []mark) {
	c.Empty = len(samples) < 2
	for _, m := range marks {
		if m.at.After(c.Since) && !m.at.After(c.Till) {
			c.Marks = append(c.Marks, drawnMark{fmt.Sprintf("%.1f", c.x(m.at)), m.text, m.at})
		}
	}
}
