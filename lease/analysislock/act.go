package analysislock

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// The states of a marked act.
const (
	ActStarted = "started" // it may have been done
	ActDone    = "done"
)

// The limits of the marked acts of one analysis.
const (
	maxActs     = 16
	maxActBytes = 64 << 10 // of all results
	// ActRoom is how much room a marker keeps free for the result of its act, in bytes.
	ActRoom = 4 << 10
)

// Unreadable is the name of an act that stands for all acts of an analysis whose field effects
// another program has replaced by something else: each may have been done.
const Unreadable = "*"

// Errors of Acts.Begin.
var (
	// ErrReused reports that this attempt has begun or recorded an act of that name before.
	ErrReused = errors.New("analysislock: one attempt has begun two acts with one name")
	// ErrFull reports that the acts of an analysis have reached a limit.
	ErrFull = errors.New("analysislock: there is no room for another act or its result")
)

// ActUncertain is the code of an analysis that became FAILED because one of its acts may
// have been done.
const ActUncertain = "effect_uncertain"

// Act is the record of a marked act: a side effect elsewhere. An attempt writes the record
// before it does the act.
type Act struct {
	State string    `json:"state"`       // ActStarted or ActDone
	Token int64     `json:"token"`       // of the attempt that has written the record
	At    time.Time `json:"at,omitzero"` // of the record, by the store's clock
	// Result is what the act returned, as JSON; only of an act that is done.
	Result json.RawMessage `json:"result,omitempty"`
	// ResultError tells why an act that is done has no Result.
	ResultError string `json:"result_error,omitempty"`
}

// bytes returns the size of the act's result, or of the room that is kept for it.
func (e *Act) bytes() int {
	if e.State != ActDone {
		return ActRoom
	}
	return len(e.Result) + len(e.ResultError)
}

// Acts are the marked acts of an analysis by name. A change makes another map.
type Acts map[string]Act

// Open returns the names of the acts that have started and are not done, in order.
func (e Acts) Open() (names []string) {
	for name, act := range e {
		if act.State != ActDone {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Begin returns e with the marker of an act that the attempt with this token begins now. If an earlier
// attempt has recorded the act, Begin returns its record; unless again is true and the act is not done,
// there is no change then, and changed is nil. Errors: ErrReused, ErrFull.
func (e Acts) Begin(name string, token int64, now time.Time, again bool,
) (changed Acts, earlier *Act, err error) {
	record, exists := e[name]
	if all := e[Unreadable]; !exists && all.State == ActStarted {
		record, exists = all, true
	}
	switch {
	case exists && record.Token == token:
		return nil, nil, ErrReused
	case exists && (record.State == ActDone || !again):
		return nil, &record, nil
	case exists:
		earlier = &record
	}
	changed, err = e.with(name, &Act{State: ActStarted, Token: token, At: now})
	return changed, earlier, err
}

// End returns e with the result of an act, or, if done is nil, without its record: the act did not
// happen. An act that is done stays so with its first result: changed is nil. ErrFull: the result is too
// large.
func (e Acts) End(name string, token int64, now time.Time, done *Act) (changed Acts, err error) {
	switch before := e[name]; {
	case before.State == ActDone && done != nil:
		return nil, nil
	case before.State == ActDone:
		return nil, fmt.Errorf("analysislock: the act %q is done", name)
	case done == nil:
		return e.with(name, nil)
	}
	return e.with(name, &Act{
		State: ActDone, Token: token, At: now, Result: done.Result, ResultError: done.ResultError,
	})
}

// with returns e with the record of one act; nil removes it.
func (e Acts) with(name string, act *Act) (Acts, error) {
	changed := Acts{}
	maps.Copy(changed, e)
	delete(changed, name)
	if act == nil {
		return changed, nil
	}

	size := act.bytes()
	for _, other := range changed {
		size += other.bytes()
	}
	switch {
	case len(changed) >= maxActs:
		return nil, fmt.Errorf("%w: an analysis has at most %d acts", ErrFull, maxActs)
	case size > maxActBytes:
		return nil, fmt.Errorf("%w: the results of its acts have at most %d bytes, with %d for each open act",
			ErrFull, maxActBytes, ActRoom)
	}
	changed[name] = *act
	return changed, nil
}
