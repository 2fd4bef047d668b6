package operate

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/cli"
	"taskguard/cmd/internal/console"
	"taskguard/cmd/internal/doctor"
	"taskguard/internal/taskqueue"
	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
	"taskguard/lease/iso8601"
	"taskguard/worker"
)

func TestExplain(t *testing.T) {
	missing := status.Error(codes.FailedPrecondition, "The query requires an index. You can create it here: https://x")
	disabled := status.Error(codes.FailedPrecondition, "The Cloud Firestore API is disabled")
	none := status.Error(codes.NotFound, "none")
	for err, word := range map[error]string{
		missing: console.MissingIndex, disabled: "", fmt.Errorf("firestore: %w", none): "",
		&taskqueue.BookingError{AnalysisID: "x", Err: none}: "correct TASK_QUEUE",
	} {
		got := explainIndex(explainQueue(err))
		explained := got.Error() != err.Error()
		if explained != (word != "") || !strings.Contains(got.Error(), word) {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestTable(t *testing.T) {
	now, done := time.Now().Add(-time.Hour), 1.0 // Firestore's time, not this machine's
	failed := &analysislock.Error{Code: "analyzer_failed"}
	all := make([]analysislock.Analysis, 6)
	for i := range all {
		all[i] = analysislock.Analysis{
			ID: "long-id", Status: "FAILED", Attempts: 10, ReadAt: now, UpdatedAt: now.Add(time.Second - time.Hour),
		}
	}
	held, waits, bad, old, ready, spent := &all[0], &all[1], &all[2], &all[3], &all[4], &all[5]
	held.Status, held.LastError, held.Progress = "PROCESSING", failed, &analysislock.Progress{Fraction: &done}
	held.Lock = lease.Lease{Owner: "worker-00042-xyz/0f0f0f/ABCD", Token: 1, ExpiresAt: now.Add(299 * time.Second)}
	waits.ID, waits.Status, waits.NextAttemptAt = "w", "QUEUED", now.Add(5*time.Minute)
	bad.Malformed = fmt.Errorf("lockToken is a string: %w", lease.ErrMalformed)
	old.Error, old.UpdatedAt = failed, now.Add(-10_000*time.Hour)
	ready.Status, ready.UpdatedAt = "READY", time.Time{}
	spent.Error, spent.LastError = &analysislock.Error{Code: "attempts_exhausted"}, &analysislock.Error{Code: "stalled"}
	const want = `ID       STATUS      TRY  UPDATED  NOW
long-id  PROCESSING  10   59 min   running, 100 %; last: analyzer_failed
w        QUEUED      10   59 min   next attempt in 5 min 00 s
long-id  FAILED      10   59 min   malformed: lockToken is a string
long-id  FAILED      10   416 d    analyzer_failed
long-id  READY       10
long-id  FAILED      10   59 min   attempts_exhausted, last: stalled
`
	// Of the last column, which is the 36th, there is what the width leaves. Ids stay whole, and 16 columns of that.
	for columns, last := range map[int]int{0: 99, 80: 99, 60: 60 - 35, 10: 16} {
		c, out := call("status")
		(&Client{}).listTable(all, true).print(c, "", columns)
		got := strings.Split(out.String(), "\n")
		for i, row := range strings.Split(want, "\n") {
			if runes := []rune(row); len(runes) > 35+last {
				row = string(runes[:35+last-1]) + "…"
			}
			if got[i] != row && got[i] != strings.Replace(row, " …", "…", 1) {
				t.Errorf("%d columns: %q, want %q", columns, got[i], row)
			}
		}
	}
}

// A key is searched for elsewhere, so that it is never cut.
func TestTable_Fold(t *testing.T) {
	all := table{{"ID", "KEY"}, {"a", "k1"}, {"bcd", "k2"}}
	for columns, want := range map[int]string{8: "ID   KEY\na    k1\nbcd  k2\n", 7: "ID\n  KEY\na\n  k1\nbcd\n  k2\n"} {
		c, out := call("status")
		all.fold(columns).print(c, "", 0)
		if got := out.String(); got != want {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
}

func TestStatus_Texts(t *testing.T) {
	t.Run("a lock", func(t *testing.T) {
		now := time.Now()
		for left, want := range map[time.Duration]string{
			time.Minute: "left by w", 0: "left by w, expired 0.0 s ago",
			-2 * time.Hour: "left by w, expired at " + iso8601.Format(now.Add(-2*time.Hour)),
		} {
			lock := lease.Lease{Owner: "w", ExpiresAt: now.Add(left), Finished: left > 0}
			if got := lockText(&analysislock.Analysis{ReadAt: now, Lock: lock}, "w"); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
	t.Run("a result is shortened", func(t *testing.T) {
		long := strings.Repeat("x", 78)
		for result, want := range map[any]string{
			nil: "", long: `"` + long + `"`, long + "x": `"` + long[:25] + "…" + long[:52] + `"`,
		} {
			if got := summary(result); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
	t.Run("the operator is the user at the machine", func(t *testing.T) {
		u, err := user.Current()
		host, hostErr := os.Hostname()
		if errors.Join(err, hostErr) == nil && operator() != u.Username+"@"+host {
			t.Error(operator())
		}
	})
	t.Run("a message is cut only for a terminal", func(t *testing.T) { // a program gets all of it
		message := strings.Repeat("frame ", 40) + "KeyError"
		c, out := call("status")
		printHistory(c, &shownAnalysis{Analysis: analysislock.Analysis{
			History: []analysislock.Attempt{{Number: 1, Outcome: "retry", Code: "analyzer_failed", Message: message}},
		}})
		if !strings.Contains(out.String(), "analyzer_failed: "+message+"\n") {
			t.Errorf("%s; want all of the message", out)
		}
	})
	t.Run("a message that the last error has is printed once", func(t *testing.T) {
		last := &analysislock.Error{Code: "stalled", Message: "no report\nfor 8s"}
		for message, want := range map[string]string{
			"attempt 3 was the last: no report\nfor 8s":               "attempt 3 was the last",
			"gave up after 3 attempts; last error: no report\nfor 8s": "gave up after 3 attempts",
			"no report\nfor 8s": "no report\nfor 8s",
		} {
			got := withoutLast(&analysislock.Error{Code: "c", Message: message}, last)
			if got.Message != want || got.Code != "c" {
				t.Errorf("%q: %+v, want %q", message, got, want)
			}
		}
		if e := (&analysislock.Error{Message: "m"}); withoutLast(e, nil) != e || withoutLast(nil, last) != nil {
			t.Error("it needs both errors")
		}
	})
	t.Run("the line of an attempt names its cause", func(t *testing.T) {
		for message, want := range map[string]string{
			"one … line": "one … line",
			"ended: Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 7": "KeyError: 7",
			"ended: Traceback (most recent call last):\n    if w … l: /v3 (refused)":  "… l: /v3 (refused)",
		} {
			if got := attemptLine(message); got != want {
				t.Errorf("%q: %q, want %q", message, got, want)
			}
		}
	})
	t.Run("an error is wrapped, but not the code of its traceback", func(t *testing.T) {
		const message = "it ended with this:\n  code that is longer\nKeyError: a long text\n"
		e := &analysislock.Error{Code: "c", Message: message}
		for columns, want := range map[int]string{
			16: "c: it ended with\n\tthis:\n\t  code that is longer\n\tKeyError: a long\n\ttext",
			0:  "c: it ended with this:\n\t  code that is longer\n\tKeyError: a long text",
		} {
			if got := errorLines(e, columns); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
}

func TestDoctor_Unread(t *testing.T) {
	failed := doctor.Reading{Parts: []string{"the queue"}, Status: doctor.Status{Why: "no credentials", Failed: true}}
	other := doctor.Reading{Parts: []string{"alerts"}, Status: doctor.Status{Why: "unnamed"}}
	read := doctor.Reading{Parts: []string{"y"}, Status: doctor.Status{From: "x"}}
	for name, tc := range map[string]struct {
		unchecked, read []doctor.Reading
		last            string
	}{
		"one reason": {unchecked: []doctor.Reading{failed, other}, last: "credentials\nnothing was read\n"},
		"nothing":    {unchecked: []doctor.Reading{other}, last: "alerts: unnamed\nnothing was read\n"},
		"a part": {
			read: []doctor.Reading{read}, unchecked: []doctor.Reading{failed, other}, last: "not all could be read\n",
		},
	} {
		c, out := call("doctor")
		diagnosis{Read: tc.read, Unchecked: tc.unchecked}.print(c)
		if text := out.String(); !strings.HasSuffix(text, tc.last) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// Whatever the collection has, the reads of a digest depend on its limit, and on the failures that it groups.
func TestDigest_Reads(t *testing.T) {
	b := emulatortest.Embedded(t)
	cl, reads := openBilled(t, b, func() {})
	fill := func(from, to int) {
		for i := from; i < to; i++ {
			old, code := at(-time.Duration(i)*time.Minute), fmt.Sprint("code", i)
			for name, fields := range map[string]doc{
				"ready":  {"status": "READY", "updatedAt": old, "createdAt": old},
				"queued": {"status": "QUEUED", "updatedAt": old, "createdAt": old},
				"waits":  {"status": "QUEUED", "updatedAt": old, "nextAttemptAt": at(time.Hour)},
				"failed": {"status": "FAILED", "updatedAt": old, "error": doc{"code": code}},
				"runs": {
					"status": "PROCESSING", "updatedAt": at(0), "lockOwner": "w", "lockExpiresAt": at(time.Hour),
				},
				"undated": {"status": "READY"},
			} {
				b.Put(t, fmt.Sprint(name, i), fields)
			}
		}
	}
	measure := func() int64 {
		t.Helper()
		before := reads.Load()
		c, _ := call("status")
		_, err := cl.digest(t.Context(), c, 10)
		ok(t, err)
		return reads.Load() - before
	}
	fill(0, 40)
	few := measure()
	fill(40, 140)
	failures, many := int64(100), measure()
	if few > 170 || many > few+failures {
		t.Errorf("%d and %d reads, want at most 170 and %d", few, many, few+failures)
	}
}

// Older failures may be behind as many cancelled analyses as a digest reads.
func TestDigest_Cancelled(t *testing.T) {
	cancelled := analysislock.Analysis{Error: &analysislock.Error{Code: analysislock.Cancelled}}
	for n, want := range map[int]string{
		maxGrouped - 1: "", maxGrouped: "taskguard status --kind order --status FAILED --since 24h\n",
	} {
		c, out := call("status")
		cl := &Client{place: cli.Place{Kind: worker.Kind{Name: "order"}}}
		cl.printCauses(c, &digest{failed: slices.Repeat([]analysislock.Analysis{cancelled}, n)}, 10, 0)
		if got := out.String(); !strings.HasSuffix(got, want) || (want == "") != (got == "") {
			t.Errorf("with %d cancelled: %q, want %q", n, got, want)
		}
	}
}

func TestDocument_ID(t *testing.T) {
	ids := map[string]bool{}
	for _, tc := range []struct{ file, content, id string }{
		{"Some File.txt", "a", "some-file-txt-"},
		{"Some File.txt", "b", "some-file-txt-"},
		{"./Some File.txt", "a", "some-file-txt-"}, // no other name
		{"other/Some File.txt", "a", "some-file-txt-"},
		{"Az09:x{`", "a", "az09-x-"},
		{"ß", "a", "file-"},
	} {
		d, err := newDocument(tc.file, []byte(tc.content))
		ok(t, err)
		ids[d.ID] = true
		if !strings.HasPrefix(d.ID, tc.id) {
			t.Errorf("%s has the id %s", tc.file, d.ID)
		}
	}
	if len(ids) != 5 {
		t.Errorf("%v, want five", ids)
	}
	if d, err := newDocument("\xff", nil); err == nil {
		t.Errorf("a name that is not UTF-8: %+v", d)
	}
}
