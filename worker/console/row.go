package console

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

// The states of a lock, in pages and their addresses.
const (
	lockHeld      = "held"
	lockStale     = "stale" // expired, not released
	lockFree      = "free"
	lockMalformed = "malformed"
)

// stuck marks an overdue analysis, whatever the state of its lock.
const stuck = "stuck"

// noStatus stands for an analysis without a status, in pages and their
// addresses. A status with this very text is listed with them.
const noStatus = "no status"

// row is one analysis as templates show it, at one moment.
type row struct {
	analysislock.Analysis
	Overdue   bool
	Problem   string // why the lock cannot be read, or the id cannot be used; empty: none
	Key       string // identifies the row on a page
	State     string // its status, or noStatus
	Kind      string // queued, processing, ready, failed, none or other: how State looks
	LockState string
	Left      time.Duration // until the expiry of a held lock
	Age       time.Duration // since UpdatedAt
	Write     bool          // changes may be made

	now time.Time
}

// newRow returns the row of a at now, the store's time.
func newRow(a analysislock.Analysis, now time.Time, write bool) row {
	r := row{
		Analysis: a, Key: key(a.ID), State: cmp.Or(a.Status, noStatus), Kind: kindOf(a.Status), LockState: lockState(&a, now),
		Left: a.Lock.ExpiresAt.Sub(now), Age: now.Sub(a.UpdatedAt), Write: write, Problem: a.Problem(), now: now,
	}
	if a.Status == analysislock.Ready { // another program may not have deleted it
		r.LastError = nil
	}
	return r
}

// Unlockable reports whether there is a lock to remove.
func (r row) Unlockable() bool {
	return r.Write && (r.LockState == lockHeld || r.LockState == lockStale)
}

// Requeueable reports whether the analysis may be requeued.
func (r row) Requeueable() bool {
	return r.Write && (r.LockState == lockStale || r.LockState == lockFree)
}

// Cancellable reports whether the analysis may be cancelled.
func (r row) Cancellable() bool {
	return r.Write && r.LockState != lockMalformed && !r.Lock.Finished
}

// Resumable reports whether the next attempt is given a checkpoint. Only the readings of
// one analysis have it.
func (r row) Resumable() bool { return r.Checkpoint != nil && r.Checkpoint.Value != nil }

// Since returns the time since t.
func (r row) Since(t time.Time) time.Duration { return r.now.Sub(t) }

// Timeline returns the attempts, the newest first. One without an outcome is running if
// it has the lock; otherwise its worker has crashed, or could not release the lock.
func (r row) Timeline() (all []analysislock.Attempt) {
	all = slices.Clone(r.History)
	slices.Reverse(all)
	for i := range all {
		switch a := &all[i]; {
		case a.Outcome != "":
		case r.LockState == lockMalformed:
			a.Outcome = "unknown"
		case r.LockState == lockHeld && a.Token == r.Lock.Token:
			a.Outcome = "running"
		default:
			a.Outcome = "no end recorded"
		}
	}
	return all
}

// Seen returns the value that a form sends back to identify the confirmed state: the state
// of the analysis, and the owner, the token and the state of the lock.
func (r row) Seen() string {
	return strconv.FormatInt(r.Lock.Token, 10) + "-" + key(r.Lock.Owner) + "-" + r.LockState + "-" + key(r.State)
}

func lockState(a *analysislock.Analysis, now time.Time) string {
	switch {
	case a.Malformed != nil:
		return lockMalformed
	case lease.Held(a.Lock, now):
		return lockHeld
	case a.Lock.Owner != "" && !a.Lock.Finished:
		return lockStale
	}
	return lockFree
}

// key returns a hash of an id, which needs no escaping in HTML.
func key(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// kinds are the four statuses. Pages show each in its own color.
var kinds = []string{"QUEUED", "PROCESSING", "READY", "FAILED"}

func kindOf(status string) string {
	switch {
	case slices.Contains(kinds, status):
		return strings.ToLower(status)
	case status == "":
		return "none"
	}
	return "other"
}

// stamp formats a time with its date; the zero time is empty.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return iso8601.Format(t)
}

// clock formats a time of day; the zero time is empty.
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("15:04:05") + " UTC"
}
