package pubsubbroker

import "time"

// SetPullFor sets for how long s pulls, before its first Receive.
func (s *Source) SetPullFor(d time.Duration) { s.pullFor = d }
