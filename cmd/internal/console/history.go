package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"taskguard/internal/text"
	"taskguard/lease/analysislock"
)

// attempt is an entry of a timeline. X and Width place its bar, in thousandths of the line.
type attempt struct {
	analysislock.Attempt
	Runs     time.Duration // since its start, if it runs; zero otherwise
	X, Width int64
	Labelled bool     // there is room for its number above the bar
	Failure  *failure // its error; nil: it has none
	Logs     string   // address of its log lines; empty: none is known
}

// timeline shows all attempts of an analysis on one line.
type timeline struct {
	Attempts    []attempt // the newest first
	Failures    []*failure
	From, Until time.Time
	Now         int64 // where now is, in thousandths of the line; 1000: at its end
	Ended       bool  // the line ends with the last attempt, not with now or the next attempt
}

// The least width of a bar, and the least distance of two numbers above the line, in thousandths.
const minWidth, minGap = 8, 40

// Timeline returns the attempts. One without an outcome is running if it has the lock; otherwise its worker
// has crashed, or could not release the lock. The line ends at the next attempt if the analysis waits for one,
// with the last attempt if the analysis is finished, and otherwise now.
func (r row) Timeline() (t timeline) {
	t.Failures = failuresOf(&r.Analysis)
	if len(r.History) == 0 {
		return t
	}
	t.From, t.Until, t.Ended = r.History[0].StartedAt, r.ReadAt, r.Lock.Finished
	switch {
	case r.Lock.Finished:
		t.Until = cmp.Or(r.History[len(r.History)-1].EndedAt, t.Until)
	case r.Group == waiting:
		t.Until = r.NextAttemptAt
	}
	unit := max(t.Until.Sub(t.From), time.Second) / 1000 // 1000 times some months is more than a Duration
	place := func(at time.Time) int64 { return min(max(int64(at.Sub(t.From)/unit), 0), 1000) }
	t.Now = place(r.ReadAt)

	number := int64(-minGap) // where the last number stands
	for i := range r.History {
		a := attempt{Attempt: r.History[i], Logs: r.logs(r.History[i].StartedAt, r.History[i].EndedAt)}
		end := cmp.Or(a.EndedAt, r.ReadAt)
		switch {
		case a.Outcome != "":
		case r.LockState == lockMalformed:
			a.Outcome = "unknown"
		case r.LockState == lockHeld && a.Token == r.Lock.Token:
			a.Outcome, a.Runs = running, max(r.Since(a.StartedAt), time.Nanosecond)
		default:
			a.Outcome, end = "no end recorded", a.StartedAt
		}

		a.X = min(place(a.StartedAt), 1000-minWidth)
		a.Width = max(place(end)-a.X, minWidth)
		if a.Labelled = a.X-number >= minGap; a.Labelled {
			number = a.X
		}
		at := slices.IndexFunc(t.Failures, func(f *failure) bool { return slices.Contains(f.tokens, a.Token) })
		if at >= 0 {
			a.Failure = t.Failures[at]
		}
		t.Attempts = append(t.Attempts, a)
	}
	slices.Reverse(t.Attempts)
	return t
}

// Took returns how long an attempt ran; 0: unknown.
func (a attempt) Took() time.Duration {
	if a.EndedAt.IsZero() || a.StartedAt.IsZero() {
		return 0
	}
	return max(a.EndedAt.Sub(a.StartedAt), time.Nanosecond)
}

// failure is an error, and the attempts that ended with it.
type failure struct {
	analysislock.Error
	Key      string // identifies it on the page
	Attempts string // such as "attempts 1–7"; empty: none is known
	Same     bool   // several attempts have it
	Cut      bool   // the middle of the message was not kept
	tokens   []int64
	numbers  []int
}

// More reports whether the message has more than its headline.
func (f *failure) More() bool { return strings.TrimSpace(message(f.Message)) != headline(f.Message) }

// failuresOf returns the errors of the attempts of a, each once, the newest first. A history keeps 256 bytes of
// a message. The whole message is known of the last error, and of all attempts with the same one.
func failuresOf(a *analysislock.Analysis) (all []*failure) {
	var known []analysislock.Error // the messages that are kept whole
	if a.Error != nil && a.Cause() == a.Error {
		known = append(known, *a.Error)
	}
	if a.LastError != nil {
		known = append(known, *a.LastError)
	}
	add := func(e analysislock.Error) *failure {
		i := slices.IndexFunc(known, func(whole analysislock.Error) bool { return alike(whole, e) })
		if i >= 0 {
			e = known[i]
		}
		for _, f := range all {
			if alike(f.Error, e) {
				return f
			}
		}
		f := &failure{Error: e, Key: key(e.Code + " " + e.Message), Cut: i < 0 && strings.Contains(e.Message, text.Gap)}
		all = append(all, f)
		return f
	}

	for i := range slices.Backward(a.History) {
		if e := errorOf(a, i); e.Code+e.Message != "" {
			f := add(e)
			f.tokens, f.numbers = append(f.tokens, a.History[i].Token), append(f.numbers, a.History[i].Number)
		}
	}
	for _, e := range known { // of an attempt that the history has lost, or of another program
		if e.Code+e.Message != "" {
			add(e)
		}
	}
	for _, f := range all {
		slices.Reverse(f.numbers)
		f.Attempts, f.Same = ranges(f.numbers), len(f.numbers) > 1
	}
	return all
}

// alike reports whether two errors are the same, as far as a history keeps them. All crashes are: their messages name
// the attempt.
func alike(x, y analysislock.Error) bool {
	return x.Code == y.Code &&
		(x.Code == analysislock.Crashed || analysislock.Kept(x.Message) == analysislock.Kept(y.Message))
}

// errorOf returns the error of entry i of the history of a. The last attempt has only the summary that attempts ran
// out: its own error is LastError. A crash has no error in the history.
func errorOf(a *analysislock.Analysis, i int) analysislock.Error {
	entry, last := &a.History[i], i == len(a.History)-1
	switch {
	case entry.Outcome == analysislock.OutcomeCrashed:
		return analysislock.Error{Code: analysislock.Crashed}
	case last && entry.Code == analysislock.AttemptsExhausted && a.LastError != nil:
		return *a.LastError
	}
	return analysislock.Error{Code: entry.Code, Message: entry.Message}
}

// folded is a failure with its message open or folded.
type folded struct {
	*failure
	Open bool
}

func fold(f *failure, open bool) folded { return folded{f, open} }

// ranges names attempts, in their order, such as "attempts 1–7, 9".
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && numbers[end+1]-numbers[end] <= 1 && numbers[end+1] >= numbers[end] {
			end++ // an attempt that did not count has the number of the next one
		}
		part := fmt.Sprint(numbers[i])
		if numbers[end] > numbers[i] {
			part += fmt.Sprint("–", numbers[end])
		}
		parts, i = append(parts, part), end+1
	}

	switch {
	case len(numbers) == 0:
		return ""
	case len(numbers) == 1:
		return "attempt " + parts[0]
	}
	return "attempts " + strings.Join(parts, ", ")
}

// Exhausted returns the error that no attempt is left, without the message of the last error, which the page shows
// below. Nil: that is not why the analysis failed.
func (r row) Exhausted() *analysislock.Error {
	if r.Error == nil || r.Cause() == r.Error {
		return nil
	}
	e := *r.Error
	if last := r.LastError.Message; last != "" {
		e.Message, _, _ = strings.Cut(e.Message, text.Head(last, 64))
	}
	e.Message = strings.TrimRight(e.Message, ":; \n")
	return &e
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

// percent formats a place of a line, which is in thousandths.
func percent(thousandths int64) string { return fmt.Sprintf("%d.%d%%", thousandths/10, thousandths%10) }
