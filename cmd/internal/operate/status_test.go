package operate

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/doctor"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
)

func TestAMissingIndexIsExplained(t *testing.T) {
	missing := status.Error(codes.FailedPrecondition, "The query requires an index. You can create it here: https://x")
	other := status.Error(codes.FailedPrecondition, "The Cloud Firestore API is disabled")
	if got := explainIndex(missing).Error(); !strings.HasPrefix(got, console.MissingIndex+": ") || !strings.HasSuffix(got, "https://x") {
		t.Error(got)
	}
	if got := explainIndex(other).Error(); got != other.Error() {
		t.Error(got)
	}
	if explainQueue(other) != other { //nolint:errorlint // the same
		t.Error("an error is lost")
	}
	now := time.Now()
	for left, want := range map[time.Duration]string{time.Minute: "left by w", 0: "left by w, expired 0.0 s ago", -2 * time.Hour: "left by w, expired at " + iso8601.Format(now.Add(-2*time.Hour))} {
		a := analysislock.Analysis{ReadAt: now, Lock: lease.Lease{Owner: "w", ExpiresAt: now.Add(left), Finished: left > 0}}
		if got := lockText(&a, "w"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	long := strings.Repeat("x", 78)
	for result, want := range map[any]string{nil: "", long: `"` + long + `"`, long + "x": `"` + long[:25] + "…" + long[:52] + `"`} {
		if got := summary(result); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	u, err := user.Current()
	host, hostErr := os.Hostname()
	if errors.Join(err, hostErr) == nil && operator() != u.Username+"@"+host {
		t.Error(operator())
	}
	c := &cli.Call{Flags: &pflag.FlagSet{}, Lookup: func(string) (string, bool) { return "9", true }}
	for _, limit := range []int{1, maxListed} {
		if got, err := consoleAddress(c, ConsoleOptions{Limit: limit}, "127.0.0.1", 65535); got != "127.0.0.1:65535" || err != nil {
			t.Errorf("%d: %s, %v", limit, got, err)
		}
	}
}

func TestTheTableHasAnAnalysisARow(t *testing.T) {
	at, done := time.Now().Add(-time.Hour), 1.0 // Firestore's time, not this machine's
	failed := &analysislock.Error{Code: "analyzer_failed"}
	base := analysislock.Analysis{ID: "long-id", Status: "PROCESSING", Attempts: 10, ReadAt: at, UpdatedAt: at.Add(-59*time.Minute - 59*time.Second), Progress: &analysislock.Progress{Fraction: &done}}
	held, waits, bad, old, ready, spent := base, base, base, base, base, base
	held.Lock, held.LastError = lease.Lease{Owner: "worker-00042-xyz/0f0f0f/ABCD", Token: 1, ExpiresAt: at.Add(299 * time.Second)}, failed
	waits.ID, waits.Status, waits.NextAttemptAt = "w", "QUEUED", at.Add(5*time.Minute)
	bad.Malformed = fmt.Errorf("lockToken is a string: %w", lease.ErrMalformed)
	old.Status, old.Error, old.UpdatedAt = "FAILED", failed, at.Add(-10_000*time.Hour)
	spent.Status, spent.Error, spent.LastError = "FAILED", &analysislock.Error{Code: "attempts_exhausted"}, &analysislock.Error{Code: "stalled"}
	ready.Status, ready.UpdatedAt, ready.Progress = "READY", time.Time{}, nil
	all := []analysislock.Analysis{held, waits, bad, old, ready, spent}
	const want = `ID       STATUS      TRY  UPDATED  NOW
long-id  PROCESSING  10   59 min   running, 100 %; last: analyzer_failed
w        QUEUED      10   59 min   next attempt in 5 min 00 s
long-id  PROCESSING  10   59 min   malformed: lockToken is a string
long-id  FAILED      10   416 d    analyzer_failed
long-id  READY       10
long-id  FAILED      10   59 min   attempts_exhausted, last: stalled
`
	for columns, want := range map[int]string{
		0: want, 80: want,
		60: strings.NewReplacer("last: analyzer_failed", "last: an…", "5 min 00 s", "5 min 00…", "is a string", "is …",
			", last: stalled", ", last…").Replace(want),
		10: strings.NewReplacer( // ids stay whole, and 16 columns of the last one
			" last: analyzer_failed", "…", "in 5 min 00 s", "in…", "lock"+"Token is a string", "lock…",
			"exhausted, last: stalled", "exhaus…").Replace(want),
	} {
		var out strings.Builder
		c := &cli.Call{Streams: cli.Streams{Out: &out}}
		(&Client{}).listTable(all, true).print(c, "", columns)
		if got := out.String(); got != want {
			t.Errorf("%d columns:\n%s\nwant\n%s", columns, got, want)
		}
	}
}

// A message is cut for a terminal's line. A program that reads the output gets all of it.
func TestTheMessageOfAnAttemptIsCutOnlyForATerminal(t *testing.T) {
	message := strings.Repeat("frame ", 40) + "KeyError"
	var out strings.Builder
	printHistory(&cli.Call{Streams: cli.Streams{Out: &out}}, &shownAnalysis{Analysis: analysislock.Analysis{
		History: []analysislock.Attempt{{Number: 1, Outcome: "retry", Code: "analyzer_failed", Message: message}},
	}})
	if !strings.Contains(out.String(), "         analyzer_failed: "+message+"\n") {
		t.Errorf("%s; want all of the message", &out)
	}
}

func TestAMessageThatTheLastErrorHasIsPrintedOnce(t *testing.T) {
	last := &analysislock.Error{Code: "stalled", Message: "no report\nfor 8s"}
	for message, want := range map[string]string{
		"attempt 3 was the last: no report\nfor 8s":               "attempt 3 was the last",
		"gave up after 3 attempts; last error: no report\nfor 8s": "gave up after 3 attempts",
		"no report\nfor 8s": "no report\nfor 8s",
		"another one":       "another one",
	} {
		if got := withoutLast(&analysislock.Error{Code: "c", Message: message}, last); got.Message != want || got.Code != "c" {
			t.Errorf("%q: %+v, want %q", message, got, want)
		}
	}
	if e := (&analysislock.Error{Message: "m"}); withoutLast(e, nil) != e || withoutLast(nil, last) != nil {
		t.Error("it needs both errors")
	}
}

func TestTheLineOfAnAttemptNamesItsCause(t *testing.T) {
	for message, want := range map[string]string{
		"it is down": "it is down",
		"one … line": "one … line",
		"ended: Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 7": "KeyError: 7",
		"ended: Traceback (most recent call last):\n    if w … l: /v3 (refused)":  "… l: /v3 (refused)",
	} {
		if got := attemptLine(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

func TestTheTextOfAnErrorIsWrappedAndTheCodeOfItsTracebackIsNot(t *testing.T) {
	e := &analysislock.Error{Code: "c", Message: "it ended with this:\n  code that is longer\nKeyError: a long text\n"}
	if got, want := errorLines(e, 16), "c: it ended with\n\tthis:\n\t  code that is longer\n\tKeyError: a long\n\ttext"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := errorLines(e, 0), "c: it ended with this:\n\t  code that is longer\n\tKeyError: a long text"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWhereNothingIsReadOnlyTheReasonIsPrinted(t *testing.T) {
	failed := doctor.Reading{Parts: []string{"the queue"}, Status: doctor.Status{Why: "no credentials", Failed: true}}
	other := doctor.Reading{Parts: []string{"alerts"}, Status: doctor.Status{Why: "unnamed"}}
	for want, d := range map[string]diagnosis{
		"not readable: the queue: no credentials\nnothing was read\n": {Unchecked: []doctor.Reading{failed, other}},
		"not checked: alerts: unnamed\nnothing was read\n":            {Unchecked: []doctor.Reading{other}},
		"read: x: y\nnot readable: the queue: no credentials\nnot checked: alerts: unnamed\nno problem in what was read; not all could be read\n": {
			Read: []doctor.Reading{{Parts: []string{"y"}, Status: doctor.Status{From: "x"}}}, Unchecked: []doctor.Reading{failed, other},
		},
	} {
		var out strings.Builder
		d.print(&cli.Call{Streams: cli.Streams{Out: &out}})
		if out.String() != want {
			t.Errorf("%s; want %s", &out, want)
		}
	}
}

func TestOnlyTheErrorOfABookingIsAboutTheQueue(t *testing.T) {
	none := status.Error(codes.NotFound, "none")
	for _, err := range []error{fmt.Errorf("firestore: %w", none), &taskqueue.BookingError{AnalysisID: "x", Err: none}} {
		_, booking := err.(*taskqueue.BookingError) //nolint:errorlint // as the row has it
		if got := explainQueue(err).Error(); strings.Contains(got, "correct TASK_QUEUE") != booking {
			t.Errorf("%v: %s", err, got)
		}
	}
}
