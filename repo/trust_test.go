package repo

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"taskguard/internal/testing/emulatortest"
	"taskguard/lease"
	"taskguard/lease/analysislock"
)

// The last reply to a holder took 4 s, and then Firestore stops answering. The run ends one
// margin before the stored expiry by Firestore's clock, which is also the holder's here.
func TestTrustIsCountedFromTheStartOfTheCall(t *testing.T) {
	cases := map[string]struct {
		exclusive bool
		faults    map[string][]fault
	}{
		"a commit":                                         {false, map[string][]fault{commit: {slowReply}}},
		"a read that shows a lost commit":                  {false, map[string][]fault{commit: {lost(codes.Unknown)}, read: {slowReply}}},
		"a commit in a transaction":                        {true, map[string][]fault{exclusiveCommit: {slowReply}}},
		"a read in a transaction":                          {true, map[string][]fault{exclusiveRead: {slowReply}}},
		"a read in a transaction that shows a lost commit": {true, map[string][]fault{exclusiveCommit: {lost(codes.Unknown)}, exclusiveRead: {nil, slowReply}}},
	}
	for name, tc := range cases {
		plan := func(t *testing.T, b *emulatortest.Backend) map[string][]fault {
			t.Helper()
			if tc.exclusive {
				return exclusively(t, b, tc.faults)
			}
			return maps.Clone(tc.faults)
		}
		for verb, after := range map[string]time.Duration{"acquire": 0, "heartbeat": 150 * time.Second} { // one heartbeat, at 100 s
			t.Run(verb+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
					a, l := openFaulty(t, b)
					b.Put(t, "x", map[string]any{"status": analysislock.Queued})
					faults := plan(t, b)
					if verb == "heartbeat" {
						mustAcquire(t, a, "x", "w/1")
					} else if len(faults[read]) > 0 {
						faults[read] = append([]fault{nil}, faults[read]...) // an acquisition begins with a read
					}
					l.inject(faults)
					if verb == "acquire" {
						mustAcquire(t, a, "x", "w/1")
					}
					wantTrust(t, b, a, l, after)
				})
			})
		}
	}
}

// wantTrust runs with the lock of w/1 on x, and l stops answering after some time. It wants the
// run to end one margin before the expiry, up to the milliseconds in which times are stored.
func wantTrust(t *testing.T, b *emulatortest.Backend, a *worker, l *faultyConn, after time.Duration) {
	t.Helper()
	var ended time.Time
	err := a.run(t.Context(), "w/1", func(ctx context.Context, _ analysislock.Work) error {
		time.Sleep(after)
		l.wantAllInjected(t)
		l.stopAnswering()
		select {
		case <-ctx.Done():
			ended = time.Now()
		case <-time.After(time.Hour):
		}
		return nil
	})
	var outOfTime *lease.LostError
	if !errors.As(err, &outOfTime) || outOfTime.Reason != lease.OutOfTime {
		t.Fatalf("run: %v, want out of time", err)
	}
	expires, _ := parseTime(b.Fields(t, "x")["lockExpiresAt"])
	if late := ended.Sub(expires.Add(-lease.Policy{}.Margin())); late.Abs() > 10*time.Millisecond {
		t.Errorf("trust ended %v too late", late)
	}
}

// Not at the time of the call or of its reply.
func TestExpiryIsJudgedAtTheTimeOfTheReading(t *testing.T) {
	cases := map[string]struct {
		fault fault
		want  string
	}{
		"expired while the reply travelled":   {slowReply, analysislock.Locked},
		"expired while the request travelled": {slowRequest, ""},
	}
	for name, tc := range cases {
		theirs := func() map[string]any {
			return map[string]any{"lockOwner": "them", "lockExpiresAt": time.Now().Add(delay / 2)}
		}
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				a, l := openFaulty(t, b)
				b.Put(t, "x", theirs())
				l.inject(map[string][]fault{read: {tc.fault}})
				wantVerdict(t, a, tc.want)
				l.wantAllInjected(t)
			})
		})
		t.Run(name+", in a transaction", func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *emulatortest.Backend) {
				a, l := openFaulty(t, b)
				b.Put(t, "x", map[string]any{"n": 0})
				l.inject(map[string][]fault{
					commit: {
						overtaken(func() { b.Merge(t, "x", map[string]any{"n": 1}) }),
						overtaken(func() { b.Merge(t, "x", theirs()) }),
					},
					exclusiveRead: {tc.fault},
				})
				wantVerdict(t, a, tc.want)
				l.wantAllInjected(t)
			})
		})
	}
}

func wantVerdict(t *testing.T, a *worker, want string) {
	t.Helper()
	acq := acquire(t, a, "x", "w/1")
	if acq.Reason != want || acq.Acquired != (want == "") {
		t.Errorf("acquire = %+v, want %q", acq, want)
	}
	if left := acq.Remaining; want == analysislock.Locked && (left <= delay/2-10*time.Millisecond || left > delay/2) {
		t.Errorf("remaining %v, want %v", left, delay/2)
	}
}
