package repo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// operation is one write of the lock on the analysis x, which begins with 3 attempts and
// the token 7.
type operation struct {
	acquired bool // before the operation
	do       func(t *testing.T, a *worker) error
	want     map[string]any // of the document, without the times
}

var operations = map[string]operation{
	"acquire": {false, func(t *testing.T, a *worker) error {
		t.Helper()
		acq, err := a.acquire(t.Context(), "x", "w/1")
		if want := (lease.Grant{Owner: "w/1", Token: 8}); err == nil && (!acq.Acquired || acq.Grant != want || acq.Attempt != 4) {
			t.Errorf("acquired = %+v, want %+v at attempt 4", acq, want)
		}
		return err
	}, map[string]any{"status": analysislock.Processing, "attempts": int64(4), "lockToken": int64(8), "lockOwner": "w/1"}},
	"heartbeat": {true, func(t *testing.T, a *worker) error {
		t.Helper()
		return a.holds["w/1"].Refresh(t.Context(), 0)
	}, map[string]any{"status": analysislock.Processing, "attempts": int64(4), "lockToken": int64(8), "lockOwner": "w/1"}},
	"report": {true, func(t *testing.T, a *worker) error {
		t.Helper()
		a.holds["w/1"].Report(analysislock.Report{Checkpoint: &analysislock.Checkpoint{Value: "c"}}, 0, nil)
		return a.holds["w/1"].Flush(t.Context())
	}, map[string]any{"status": analysislock.Processing, "attempts": int64(4), "lockToken": int64(8), "lockOwner": "w/1", "checkpoint": "c"}},
	"finish": {true, func(t *testing.T, a *worker) error {
		t.Helper()
		return a.holds["w/1"].Complete(t.Context(), "result")
	}, map[string]any{"status": analysislock.Ready, "attempts": int64(4), "lockToken": int64(8), "result": "result", "finishedBy": "w/1"}},
	"release": {true, func(t *testing.T, a *worker) error {
		t.Helper()
		return a.holds["w/1"].Release(t.Context(), analysislock.OutcomeShuttingDown, true, "")
	}, map[string]any{"status": analysislock.Queued, "attempts": int64(3), "lockToken": int64(8)}},
	"retry": {true, func(t *testing.T, a *worker) error {
		t.Helper()
		_, err := a.holds["w/1"].Retry(t.Context(), "c", "m", 0, false, nil)
		return err
	}, map[string]any{"status": analysislock.Queued, "attempts": int64(4), "lockToken": int64(8), "lastError": map[string]any{"code": "c", "message": "m"}}},
}

var doubtful = []codes.Code{
	codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Internal, codes.Canceled,
	codes.Unknown, codes.Aborted, codes.FailedPrecondition, codes.InvalidArgument, codes.NotFound,
}

// The first commit returns any code, and was made or not. The operation has the same result
// each time, and is applied once. Only a commit outside a transaction can be refused; then an
// acquisition is made again, before it finds that the document is full.
func TestACommitOfUnknownOutcomeIsAppliedOnce(t *testing.T) {
	for verb, op := range operations {
		for _, code := range doubtful {
			for how, f := range map[string]fault{"carried out": lost(code), "dropped": dropped(code)} {
				for _, exclusive := range []bool{false, true} {
					refused := how == "dropped" && code == codes.InvalidArgument && !exclusive && verb != "acquire"
					if refused && (verb == "retry" || verb == "report") {
						continue // released, or renewed, without it; see TestARetryThatIsRefusedReleasesTheLockWithoutItsMessage and TestACheckpointThatTheDocumentCannotHoldIsDroppedAndTheLockRenewed
					}
					t.Run(fmt.Sprintf("%s/%v/%s/exclusive=%v", verb, code, how, exclusive), func(t *testing.T) {
						inBubble(t, func(t *testing.T, b *emulatortest.Backend) { op.runWith(t, b, f, exclusive, refused) })
					})
				}
			}
		}
	}
}

// runWith makes the operation with f as the fault of its commit, and checks the document.
func (op operation) runWith(t *testing.T, b *emulatortest.Backend, f fault, exclusive, refused bool) {
	t.Helper()
	a, l := openFaulty(t, b)
	b.Put(t, "x", map[string]any{"status": analysislock.Queued, "attempts": 3, "lockToken": 7, "theirs": 0})
	if op.acquired {
		mustAcquire(t, a, "x", "w/1")
		time.Sleep(time.Minute)
	}
	before, billed, began := b.Fields(t, "x"), b.Server.Usage().Writes, time.Now()
	faults, writes, theirs := map[string][]fault{commit: {f}}, int64(1), int64(0)
	if exclusive {
		faults, writes, theirs = exclusively(t, b, map[string][]fault{exclusiveCommit: {f}}), 3, 2
	}
	l.inject(faults)
	err := op.do(t, a)
	l.wantAllInjected(t)
	billed = b.Server.Usage().Writes - billed
	got := b.Fields(t, "x")
	if refused {
		if diff := cmp.Diff(before, got); !errors.Is(err, lease.ErrRefused) || billed != 0 || diff != "" {
			t.Errorf("error = %v, want ErrRefused; document (-before +after):\n%s", err, diff)
		}
		return
	}
	if err != nil || billed != writes {
		t.Errorf("%d writes, error %v; want %d and none", billed, err, writes)
	}
	want := map[string]any{"theirs": theirs}
	for k, v := range op.want {
		want[k] = v
	}
	if want["lockOwner"] != nil {
		heartbeat, _ := parseTime(got["lockHeartbeatAt"])
		expires, _ := parseTime(got["lockExpiresAt"])
		if heartbeat.Before(began.Truncate(time.Millisecond)) || !expires.Equal(heartbeat.Add(lease.DefaultTTL)) {
			t.Errorf("heartbeat %v, expiry %v; the operation began at %v", heartbeat, expires, began)
		}
		delete(got, "lockHeartbeatAt")
		delete(got, "lockExpiresAt")
	}
	same(t, want, withoutRuns(got))
}
