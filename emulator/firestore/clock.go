package firestore

import "time"

// clock is the store's own time in whole microseconds, Firestore's resolution.
// It follows now but never runs backwards, and no commit shares its time with
// an earlier commit or reading: a reading at time t has seen exactly the
// commits dated t or before. It is guarded by the store's mutex.
type clock struct {
	now  func() time.Time
	last time.Time
}

// reading dates a reading: not before the last commit.
func (c *clock) reading() time.Time {
	if t := c.now().UTC().Truncate(time.Microsecond); t.After(c.last) {
		c.last = t
	}
	return c.last
}

// commit dates a commit: after every earlier commit and reading.
func (c *clock) commit() time.Time {
	before := c.last
	if !c.reading().After(before) {
		c.last = before.Add(time.Microsecond)
	}
	return c.last
}
