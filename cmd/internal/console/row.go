package console

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/printable"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// The states of a lock, in pages and their addresses.
const (
	lockHeld      = "held"
	lockStale     = "stale" // expired, not released
	lockFree      = "free"
	lockMalformed = "malformed"
)

// The groups of analyses that are listed first.
const (
	uncertain = "uncertain" // free, with an act that may have been done
	stuck     = "stuck"     // unfinished, free, and neither updated nor waiting for a TTL and two minutes
	waiting   = "waiting"   // the next attempt is not due yet
	running   = "running"   // the lock is held
	others    = "others"    // a section of the list, and no group
)

// noStatus stands for an analysis without a status, in pages and their
// addresses. A status with this very text is listed with them.
const noStatus = "no status"

// row is one analysis as templates show it at ReadAt.
type row struct {
	analysislock.Analysis
	Group     string // uncertain, stuck, waiting, running or empty
	Section   string // the section of the page that begins with this row; empty: none begins
	Key       string // identifies the row on a page
	State     string // its status, or noStatus
	Kind      string // queued, processing, ready, failed, none or other: how State looks
	LockState string
	KeyState  repo.KeyState // empty: there is none, or it is not shown
	Write     bool          // changes may be made
	ActKey    func(id, act string) string
	Silence   time.Duration // an owner without a heartbeat for so long seems to be dead
	Limit     int           // the attempts that an analysis has; 0: no limit
}

// newRow returns the row of a at now, the store's time.
func (s *Server) newRow(a *analysislock.Analysis, now time.Time) row {
	r := row{
		Analysis: *a, Key: key(a.ID), State: cmp.Or(a.Status, noStatus), Kind: kindOf(a.Status),
		LockState: lockState(a, now), Write: s.o.Operator != nil, ActKey: s.source.ActKey, Silence: s.o.Lock.Silence(),
		Limit: s.o.Lock.MaxAttempts,
	}
	r.ReadAt = now
	if a.Status == analysislock.Ready { // another program may not have deleted it
		r.LastError = nil
	}
	switch {
	case r.LockState == lockHeld:
		r.Group = running
	case a.Malformed == nil && !a.Lock.Finished && r.Waits():
		r.Group = waiting
	}
	return r
}

// Began returns when the attempt that runs began, or else the first one.
func (r row) Began() time.Time {
	if n := len(r.History); n > 0 && r.History[n-1].Token == r.Lock.Token && r.LockState == lockHeld {
		return r.History[n-1].StartedAt
	}
	return r.StartedAt
}

// Problem returns why the lock cannot be read, or the id cannot be used; empty: none.
func (r row) Problem() string { return r.Analysis.Problem() }

// Since returns the time since t.
func (r row) Since(t time.Time) time.Duration { return r.ReadAt.Sub(t) }

// Until returns the time until t.
func (r row) Until(t time.Time) time.Duration { return t.Sub(r.ReadAt) }

// Took returns the time from the first attempt's start to the end of a finished analysis;
// 0: unknown.
func (r row) Took() time.Duration {
	if !r.Lock.Finished || r.StartedAt.IsZero() {
		return 0
	}
	return max(r.UpdatedAt.Sub(r.StartedAt), time.Nanosecond)
}

// Silent reports whether the owner of a held lock seems to be dead. Without a time of its heartbeat, it does not.
func (r row) Silent() bool {
	return r.LockState == lockHeld && !r.Lock.HeartbeatAt.IsZero() && r.Since(r.Lock.HeartbeatAt) > r.Silence
}

// Unlockable reports whether there is a lock to remove whose owner seems to be dead.
func (r row) Unlockable() bool { return r.Write && (r.LockState == lockStale || r.Silent()) }

// Listed reports whether the list offers changes: those of a finished analysis that has not failed are on its page.
func (r row) Listed() bool {
	return (r.Requeueable() || r.Cancellable()) && !r.Closed() && r.Malformed == nil
}

// Heading returns the heading above the row; empty: none. What needs attention has one heading, above its causes.
func (r row) Heading() string {
	return map[string]string{
		waiting: "Waiting for the next attempt", running: "Running", others: "Others, the last updated first",
	}[r.Section]
}

// Brief returns the id in one line of the list: ids often differ at their end.
func (r row) Brief() string { return cli.Shorten(printable.Line(r.ID), maxBrief) }

// FormID returns the id as a form sends it: a browser changes the line ends of a field, and drops some characters.
func (r row) FormID() string { return url.QueryEscape(r.ID) }

// maxBrief is how many runes of an id a line of the list has room for: as many as a UUID has.
const maxBrief = 36

// Requeueable reports whether the analysis may be requeued, and its acts resolved.
func (r row) Requeueable() bool {
	return r.Write && (r.LockState == lockStale || r.LockState == lockFree)
}

// Cancellable reports whether the analysis may be cancelled.
func (r row) Cancellable() bool {
	return r.Write && r.LockState != lockMalformed && !r.Lock.Finished
}

// Parked reports whether the analysis waits for a slot of its key.
func (r row) Parked() bool { return !r.ParkedAt.IsZero() && !r.Lock.Finished }

// Resumable reports whether the next attempt is given a checkpoint. Only the readings of
// one analysis have it.
func (r row) Resumable() bool { return r.Checkpoint != nil && r.Checkpoint.Value != nil }

// attempt is an entry of a timeline. X and Width place it between the start of the first
// entry and now, or the end of the last one if the analysis is finished, in thousandths.
type attempt struct {
	analysislock.Attempt
	X, Width int64
}

// Timeline returns the attempts, the newest first. One without an outcome is running if
// it has the lock; otherwise its worker has crashed, or could not release the lock.
func (r row) Timeline() (all []attempt) {
	if len(r.History) == 0 {
		return nil
	}
	start, until := r.History[0].StartedAt, r.ReadAt
	if r.Lock.Finished {
		until = cmp.Or(r.History[len(r.History)-1].EndedAt, until)
	}
	scale := max(until.Sub(start), time.Second)

	for i := range slices.Backward(r.History) {
		a := r.History[i]
		end := cmp.Or(a.EndedAt, r.ReadAt)
		switch {
		case a.Outcome != "":
		case r.LockState == lockMalformed:
			a.Outcome = "unknown"
		case r.LockState == lockHeld && a.Token == r.Lock.Token:
			a.Outcome = running
		default:
			a.Outcome, end = "no end recorded", a.StartedAt
		}

		x := min(max(int64(1000*a.StartedAt.Sub(start)/scale), 0), 992)
		all = append(all, attempt{a, x, max(int64(1000*end.Sub(a.StartedAt)/scale), 8)})
	}
	return all
}

// Crashes returns the attempts that crashed, the newest first, if that is why the analysis is FAILED, or
// not finished yet.
func (r row) Crashes() (all []analysislock.Attempt) {
	if !r.HasCode(analysislock.Crashed) {
		return nil
	}
	for i := range slices.Backward(r.History) {
		if a := &r.History[i]; a.Outcome == analysislock.OutcomeCrashed {
			all = append(all, *a)
		}
	}
	return all
}

// act is a marked act of an analysis.
type act struct {
	Name string
	analysislock.Act
	Key       string        // its idempotency key; empty: unknown
	Uncertain bool          // it may have been done
	Ago       time.Duration // the time since At
}

// ActRows returns the marked acts. Only the readings of one analysis, and of the uncertain acts, have
// them. While an attempt runs, it may still record acts that it began.
func (r row) ActRows() (all []act) {
	open := r.Acts.Open()
	for _, name := range slices.Sorted(maps.Keys(r.Acts)) {
		e := r.Acts[name]
		uncertain := r.LockState != lockHeld && slices.Contains(open, name)
		all = append(all, act{name, e, r.ActKey(r.ID, name), uncertain, r.Since(e.At)})
	}
	return all
}

// Seen returns the value that a form sends back to identify the confirmed state: the state
// of the analysis, and the owner, the token and the state of the lock.
func (r row) Seen() string {
	return fmt.Sprintf("%d-%s-%s-%s", r.Lock.Token, key(r.Lock.Owner), r.LockState, key(r.State))
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
var kinds = []string{analysislock.Queued, analysislock.Processing, analysislock.Ready, analysislock.Failed}

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

// utc formats a time for people; the zero time is empty.
func utc(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// clock formats a time of day; the zero time is empty.
func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("15:04:05") + " UTC"
}

// shorten cuts the middle out of a text of more than 64 runes: ids often differ at
// their end.
func shorten(text string) string { return cli.Shorten(text, 64) }

// span formats a duration in at most two units, as console.js does.
func span(d time.Duration) string {
	s := max(int64(d/time.Second), 0)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %02d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %02d min", s/3600, s/60%60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s/3600%24)
}

// took formats how long something took: as span, and below a second in milliseconds.
func took(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", max(d, 0).Milliseconds())
	}
	return span(d)
}

// message makes a message of several lines legible.
func message(text string) string {
	text = strings.NewReplacer("\r\n", "\n", "\t", "    ").Replace(text)
	return printable.Lines(strings.TrimRight(text, "\n "))
}

var (
	pythonTrace = regexp.MustCompile(`Traceback \(most recent call last\):|(?m:^  File ")`)
	errorLine   = regexp.MustCompile(`(?s)^.*\n([\w.]*(?:Error|Exception)(?: \[\w+\])?:[^\n]*)`)
)

// headline returns the line that says what a message is about: the last line of a Python traceback,
// or the last line that looks like an error of Node, or the first line.
func headline(text string) string {
	text = message(text)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if pythonTrace.MatchString(text) {
		return lines[len(lines)-1]
	}
	if found := errorLine.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return lines[0]
}

// number formats n with a comma between thousands.
func number(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// age formats a duration in the larger unit of span, as console.js does.
func age(d time.Duration) string {
	return strings.Join(strings.Fields(span(d))[:2], " ")
}
