package operate

import (
	"fmt"
	"os/user"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/internal/taskqueue"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

func TestAMissingIndexIsExplained(t *testing.T) {
	missing := status.Error(codes.FailedPrecondition, "The query requires an index. You can create it here: https://x")
	other := status.Error(codes.FailedPrecondition, "The Cloud Firestore API is disabled")
	if got := explainIndex(missing).Error(); !strings.HasPrefix(got, missingIndex+": ") || !strings.HasSuffix(got, "https://x") {
		t.Error(got)
	}
	if got := explainIndex(other).Error(); got != other.Error() {
		t.Error(got)
	}
	if explainQueue(other) != other || refusal(lease.ErrFinished) != lease.ErrFinished { //nolint:errorlint // the same
		t.Error("an error is lost")
	}
	at := time.Now()
	for l, want := range map[lockInfo]string{
		{Owner: "w"}: "left by w, without an expiry", {Owner: "w", ExpiresAt: at, remaining: 1}: "left by w", {Owner: "w", ExpiresAt: at}: "left by w, expired 0.0 s ago",
	} {
		if got := l.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	long := strings.Repeat("x", 78)
	for result, want := range map[any]string{nil: "", long: `"` + long + `"`, long + "x": `"` + long + "…"} {
		if got := summary(result); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if u, err := user.Current(); err == nil && operator() != u.Username {
		t.Error(operator())
	}
	c := cli.NewCall(cli.Command{}, nil, cli.Streams{}, func(string) (string, bool) { return "9", true })
	for _, limit := range []int{1, maxListed} {
		if got, err := consoleAddress(c, ConsoleOptions{Limit: limit}, "127.0.0.1", 65535); got != "127.0.0.1:65535" || err != nil {
			t.Errorf("%d: %s, %v", limit, got, err)
		}
	}
}

func TestTablesFit80Columns(t *testing.T) {
	at, done := time.Now().Add(-time.Hour), 1.0 // Firestore's time, not this machine's
	id, owner := "some-text-md-0123456789abcd", "worker-00042-xyz/"+strings.Repeat("0f", 40)+"/ABCD"
	failed := &analysislock.Error{Code: "analyzer_failed", Message: strings.Repeat("frame ", 99) + "\nKeyError: 'x'"}
	base := analysislock.Analysis{ID: id, Status: "PROCESSING", Attempts: 10, ReadAt: at, UpdatedAt: at.Add(-59*time.Minute - 59*time.Second), Progress: &analysislock.Progress{Fraction: &done}}
	held, dead, waits, bad, old := base, base, base, base, base
	held.Lock, held.LastError = lease.Lease{Owner: owner, Token: 1, ExpiresAt: at.Add(299 * time.Second)}, failed
	dead.ID, dead.Lock = "d", lease.Lease{Owner: owner, Token: 1, ExpiresAt: at.Add(-time.Second)}
	waits.Status, waits.NextAttemptAt, waits.LastError = "QUEUED", at.Add(5*time.Minute), failed
	bad.Status, bad.Malformed = strings.Repeat("ANALYZING", 9), fmt.Errorf("%w: lockToken is a string", lease.ErrMalformed)
	old.Status, old.Error, old.UpdatedAt = "FAILED", &analysislock.Error{Code: strings.Repeat("a", 60) + "_code"}, at.Add(-10_000*time.Hour)
	var out strings.Builder
	c := cli.NewCall(cli.Command{}, nil, cli.Streams{Out: &out}, nil)
	printTable(c, []analysislock.Analysis{held, waits, bad, old})
	held.ID, waits.ID = "a", "b"
	printTable(c, []analysislock.Analysis{held, waits, dead})
	const uuid = "019abcde-0123-4567-89ab-0123456789ab"
	waits.ID, held.ID, old.Error = uuid, "long", nil
	printTable(c, []analysislock.Analysis{held, waits, old})
	history := shownAnalysis{Analysis: analysislock.Analysis{History: []analysislock.Attempt{{Number: 10, StartedAt: at, EndedAt: at.Add(1499999 * time.Millisecond), Outcome: "shutting_down", Code: failed.Code, Message: failed.Message}}}}
	printHistory(c, &history)
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{
		id + "  PROCESSING   10  100 %  59m59s", id + "  QUEUED ", id + "  ANA…LYZING", id + "  FAILED       10  100 %  10000 h ", "aa_code\n", "  waits, 5m0s left\n", "… 4m59s left\n", "\na   PROCESSING   10  100 %  59m59s    held by work…0f/ABCD, 4m59s left\n",
		"\nd   PROCESSING   10  100 %  59m59s    left by work…0f/ABCD, expired 1.0 s ago\n",
		"\nb   QUEUED       10  100 %  59m59s    waits, 5m0s left; last: analyzer_failed\n", "\n10       ",
		"  UPDATED \n    LOCK, ERROR\nlong  ", "\n    held by work…0f/ABCD, 4m59s left; last: analyzer_failed\n" + uuid + "  QUEUED       10  100 %  59m59s  \n    waits, 5m0s left; last: analyzer_failed\n" + id, "10000 h \n\n", "\n         analyzer_failed: frame ", "\\nKeyError: 'x'\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
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
