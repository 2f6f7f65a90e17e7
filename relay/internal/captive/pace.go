package captive

import "time"

// The most that one read of parked records asks for over all lanes.
const (
	mostRows  = 2048
	mostViews = 8
)

// Pace is how much one read of parked records asks for: as much as the database answers in
// time. A lane alone may take long, such as one with millions of records. It is not safe for
// concurrent use.
type Pace struct {
	asked int // the most rows that the next read asks for
	alone bool
}

// NewPace returns a pace without failures.
func NewPace() Pace { return Pace{asked: mostRows} }

// Rows is the most that the next read asks for.
func (p *Pace) Rows() int { return p.asked }

// Views is the number of lanes whose whole view it may ask for.
func (p *Pace) Views() int { return max(mostViews*p.asked/mostRows, 1) }

// Alone reports whether it asks for one lane only: the first one of the read that failed.
func (p *Pace) Alone() bool { return p.alone }

// Timeout is the part of whole that it has: short, so that a read that is too large is found
// out early. The smallest one, and that of one lane alone, has all of it.
func (p *Pace) Timeout(whole time.Duration) time.Duration {
	if p.asked == 1 || p.alone {
		return whole
	}
	return whole / 4
}

// Worked notes that a read was answered after that time.
func (p *Pace) Worked(took, whole time.Duration) {
	if took < p.Timeout(whole)/4 {
		p.asked = min(2*p.asked, mostRows)
	}
	p.alone = false
}

// Failed notes that a read failed that had asked for so much. The next one asks for half of it,
// and for one lane alone, unless this one did.
func (p *Pace) Failed(asked int) {
	p.asked, p.alone = max(min(p.asked, asked)/2, 1), !p.alone
}
