package analysislock

import (
	"time"

	"taskguard/lease"
)

// Change is a change of an analysis by its run, for Hold.Send.
type Change = lease.Change[Analysis]

// The parts of a Change. A newer change of a part replaces an unwritten one.
const (
	progressPart   = "progress"
	checkpointPart = "checkpoint"
	actsPart       = "acts"
)

// Progressed sets the progress of a run.
func Progressed(p Progress) Change {
	return Change{Part: progressPart, Set: func(d *Analysis) { d.Progress = &p }}
}

// Checkpointed sets the checkpoint of a run, or clears it if its Value is nil.
func Checkpointed(c *Checkpoint) Change {
	return Change{Part: checkpointPart, Set: func(d *Analysis) { d.Checkpoint = c }}
}

// Beginning is the begin of an act, see Acts.Begin. Begun and Earlier are set before the Done of
// its Change is called.
type Beginning struct {
	Name  string    // of the act
	Token int64     // the attempt's fencing token
	Now   time.Time // by the store's clock
	Again bool      // an earlier attempt's marker is no obstacle

	Begun   bool // the act was marked
	Earlier *Act // the record of an earlier attempt
}

// Change marks the act, unless an earlier attempt's record decides otherwise. Done gets ErrReused or
// ErrFull if the act cannot begin.
func (b *Beginning) Change(done func(error)) Change {
	return Change{Part: actsPart, Done: done, Decide: func(d Analysis) (func(*Analysis), error) {
		changed, earlier, err := d.Acts.Begin(b.Name, b.Token, b.Now, b.Again)
		b.Begun, b.Earlier = changed != nil, earlier
		return marking(changed), err
	}}
}

// Undo removes the marker of an act that was not done because its caller has not waited for Change.
func (b *Beginning) Undo() Change {
	return Change{Part: actsPart, Decide: func(d Analysis) (func(*Analysis), error) {
		if act := d.Acts[b.Name]; !b.Begun || act.Token != b.Token || act.State != ActStarted {
			return nil, nil //nolint:nilnil // nothing to undo
		}
		changed, err := d.Acts.with(b.Name, b.Earlier)
		return marking(changed), err
	}}
}

// ActEnded records the end of an act; see Acts.End. Done gets ErrFull if the result is too large.
func ActEnded(name string, token int64, now time.Time, result *Act, done func(error)) Change {
	return Change{Part: actsPart, Done: done, Decide: func(d Analysis) (func(*Analysis), error) {
		changed, err := d.Acts.End(name, token, now, result)
		return marking(changed), err
	}}
}

// marking returns the function that sets the acts of an analysis; nil: they do not change.
func marking(changed Acts) func(*Analysis) {
	if changed == nil {
		return nil
	}
	return func(d *Analysis) { d.mark(changed) }
}
