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
	Project   string        // where the workers' log lines are; empty: unknown
}

// newRow returns the row of a at now, the store's time.
func (s *Server) newRow(a *analysislock.Analysis, now time.Time) row {
	r := row{
		Analysis: *a, Key: key(a.ID), State: cmp.Or(a.Status, noStatus), Kind: kindOf(a.Status),
		LockState: lockState(a, now), Write: s.o.Operator != nil, ActKey: s.source.ActKey, Silence: s.o.Lock.Silence(),
		Project: s.o.Project, Limit: s.o.Lock.MaxAttempts,
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
func (r row) Began() time.Time { return r.Analysis.Began() }

// Problem returns why the lock cannot be read, or the id cannot be used; empty: none.
func (r row) Problem() string { return r.Analysis.Problem() }

// Uncertain reports whether it has an act that may have been done.
func (r row) Uncertain() bool {
	return slices.ContainsFunc(r.ActRows(), func(a act) bool { return a.Uncertain })
}

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
func (r row) Silent() bool { return r.LockState == lockHeld && r.Analysis.Silent(r.Silence) }

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

// oneLine returns the headline of a message for one line of a page, which cuts it at its end.
func oneLine(text string) string { return cli.Shorten(headline(text), 160) }

// took formats how long something took: as cli.Span, and below a second in milliseconds.
func took(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", max(d, 0).Milliseconds())
	}
	return cli.Span(d)
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

// diedWorker is the message of a crash, which names the worker and the attempt.
var diedWorker = regexp.MustCompile(`^the worker .* ended during attempt \d+ and recorded no outcome$`)

// Topic returns the headline by which failures are grouped. Crashes are one group, whichever worker died.
func Topic(text string) string {
	text = headline(text)
	if diedWorker.MatchString(text) {
		return "the worker ended during the run and recorded no outcome"
	}
	return text
}

// number formats n with a comma between thousands.
func number(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// age formats a duration in the larger unit of cli.Span, as console.js does.
func age(d time.Duration) string {
	return strings.Join(strings.Fields(cli.Span(d))[:2], " ")
}
