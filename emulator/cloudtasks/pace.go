package cloudtasks

import (
	"math"
	"time"
)

// pace is a token bucket kept as one instant: the time at which the bucket will
// be full again. Whole nanoseconds make it exact, where a fractional count of
// tokens drifts.
type pace struct {
	interval time.Duration // one token's time
	burst    int           // the bucket's size
	full     time.Time
}

// limit sets the rate. Under a new one the bucket is full: what was taken from
// it was counted in the old one's time.
func (p *pace) limit(perSecond float64, burst int) {
	seconds := math.Min(1/perSecond, retention.Seconds())
	interval := time.Duration(seconds * float64(time.Second))
	if interval != p.interval || burst != p.burst {
		*p = pace{interval: interval, burst: burst}
	}
}

// earliest returns the first instant at which a token is there.
func (p *pace) earliest() time.Time {
	return p.full.Add(-time.Duration(p.burst-1) * p.interval)
}

// take removes the token that is there at now.
func (p *pace) take(now time.Time) {
	if p.full.Before(now) {
		p.full = now
	}
	p.full = p.full.Add(p.interval)
}
