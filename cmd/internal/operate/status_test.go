package operate

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"regexp"
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
	c := &cli.Call{Lookup: func(string) (string, bool) { return "9", true }}
	for _, limit := range []int{1, maxListed} {
		if got, err := consoleAddress(&pflag.FlagSet{}, c, ConsoleOptions{Limit: limit}, "127.0.0.1", 65535); got != "127.0.0.1:65535" || err != nil {
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
	bad.Malformed = fmt.Errorf("%w: lockToken is a string", lease.ErrMalformed)
	old.Status, old.Error, old.UpdatedAt = "FAILED", failed, at.Add(-10_000*time.Hour)
	spent.Status, spent.Error, spent.LastError = "FAILED", &analysislock.Error{Code: "attempts_exhausted"}, &analysislock.Error{Code: "stalled"}
	ready.Status, ready.UpdatedAt, ready.Progress = "READY", time.Time{}, nil
	var out strings.Builder
	printTable(&cli.Call{Streams: cli.Streams{Out: &out}}, []analysislock.Analysis{held, waits, bad, old, ready, spent})
	const want = `ID       STATUS      TRY  DONE   UPDATED  LOCK                              ERROR
long-id  PROCESSING  10   100 %  59m59s   held by work…0f/ABCD, 4m59s left  last: analyzer_failed
w        QUEUED      10   100 %  59m59s   waits, 5m0s left
long-id  PROCESSING  10   100 %  59m59s   malformed                         lease: malformed record: lockToken is a string
long-id  FAILED      10   100 %  10000 h                                    analyzer_failed
long-id  READY       10
long-id  FAILED      10   100 %  59m59s                                     attempts_exhausted, last: stalled
`
	if got := regexp.MustCompile(` +\n`).ReplaceAllString(out.String(), "\n"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
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
