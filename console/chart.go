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
	Rows        []chartRow    // some of the figures, the newest first
	gap         time.Duration // between points, from which on a line is interrupted
	Heads       []string      // of the table
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

func lagChart(s span, samples []sample, marks []mark) chart {
	c := chart{gap: s.gap(samples), Name: "lag", Title: "Lag", Heads: []string{"Lag", "Pending"}}
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

func rateChart(s span, samples []sample, marks []mark) chart {
	c := chart{gap: s.gap(samples), Name: "rate", Title: "Rate", Heads: []string{"In", "Out"}}
	var in, out []point
	var rows []chartRow
	for i := 1; i < len(samples); i++ {
		b, a := samples[i], samples[i-1]
		for j := i - 1; j >= max(i-3, 0) && samples[j+1].at.Sub(samples[j].at) <= c.gap; j-- {
			a = samples[j] // over a few samples: less of a saw
		}
		if b.at.Sub(samples[i-1].at) > c.gap {
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

// stuckChart shows what waits for a person.
func stuckChart(s span, samples []sample, marks []mark) chart {
	c := chart{gap: s.gap(samples), Name: "stuck", Title: "Stuck", Heads: []string{"Dead", "Blocked"}}
	var dead, blocked []point
	for _, s := range samples {
		dead = append(dead, point{s.at, float64(s.dead)})
		if s.blocked >= 0 {
			blocked = append(blocked, point{s.at, float64(s.blocked)})
		}
	}
	top := c.scale(10, dead, blocked)
	c.Top = num(int64(top))
	c.draw("dead", "Dead", dead, top)
	c.draw("keys", "Blocked keys", blocked, top)
	c.finish(samples, marks)
	for i := len(samples) - 1; i >= 0; i -= max(len(samples)/rowsShown, 1) {
		keys := "–"
		if samples[i].blocked >= 0 {
			keys = num(samples[i].blocked)
		}
		c.Rows = append(c.Rows, chartRow{samples[i].at, []string{num(samples[i].dead), keys}})
	}
	return c
}

// gap is the time between two samples from which on nobody was looking.
func (s span) gap(samples []sample) time.Duration {
	between := s.Long / mostPoints
	if len(samples) > 0 && samples[len(samples)-1].at.Sub(samples[0].at) > fineFor {
		between = max(between, coarse) // what this process has seen
	}
	return max(gapAfter, 3*s.every, 3*between)
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
		if math.IsNaN(p.value) || !before.IsZero() && p.at.Sub(before) > c.gap {
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
			x := fmt.Sprintf("%.0f", c.x(m.at))
			if n := len(c.Marks); n > 0 && c.Marks[n-1].X == x { // acts of one moment are one line
				c.Marks[n-1].Text += "; " + m.text
				continue
			}
			c.Marks = append(c.Marks, drawnMark{x, m.text, m.at})
		}
	}
}
