package console

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/internal/cli"
	"taskguard/lease/analysislock"
)

// attempts returns a history with these outcomes, codes and messages.
func attempts(entries ...[3]string) (all []analysislock.Attempt) {
	for i, e := range entries {
		all = append(all, analysislock.Attempt{
			Number: i + 1, Token: int64(i + 1), Outcome: e[0], Code: e[1], Message: analysislock.Kept(e[2]),
		})
	}
	return all
}

// The same error of several attempts is shown once, and whole. A star stands for a message whose middle is missing.
func TestFailuresOf(t *testing.T) {
	long, other := strings.Repeat("x", 999)+"KeyError", strings.Repeat("y", 999)
	exit := func(message string) *analysislock.Error { return &analysislock.Error{Code: "exit_1", Message: message} }
	last := "attempt 2 was the last: " + long
	retry := [3]string{"retry", "exit_1", long}
	for name, tc := range map[string]struct {
		failed, last *analysislock.Error
		history      []analysislock.Attempt
		want         string
	}{
		"nothing failed": {history: attempts([3]string{"ready"}), want: ""},
		"three attempts are left": {
			last: exit(long), history: attempts(retry, retry, retry), want: "exit_1 attempts 1–3 1007",
		},
		"no attempt is left": {
			failed: &analysislock.Error{Code: "attempts_exhausted", Message: last}, last: exit(long),
			history: attempts(retry, [3]string{"failed", "attempts_exhausted", last}),
			want:    "exit_1 attempts 1–2 1007",
		},
		"another error between": {
			last: exit(long), history: attempts(retry, [3]string{"retry", "exit_1", other}, retry),
			want: "exit_1 attempts 1, 3 1007; exit_1 attempt 2 255*",
		},
		"the same message with another code": {
			last: exit("no"), history: attempts([3]string{"retry", "exit_2", "no"}, [3]string{"retry", "exit_1", "no"}),
			want: "exit_1 attempt 2 2; exit_2 attempt 1 2",
		},
		"a permanent error after a temporary one": {
			failed: &analysislock.Error{Code: "too_large", Message: other}, last: exit(long),
			history: attempts(retry, [3]string{"failed", "too_large", other}),
			want:    "too_large attempt 2 999; exit_1 attempt 1 1007",
		},
		"crashes, whose messages name the attempt": {
			last:    &analysislock.Error{Code: "crashed", Message: "attempt 2"},
			history: attempts([3]string{"crashed"}, [3]string{"crashed"}, [3]string{}),
			want:    "crashed attempts 1–2 9",
		},
		"a history that has lost the attempt": {last: exit("no"), want: "exit_1  2"},
	} {
		a := analysislock.Analysis{Error: tc.failed, LastError: tc.last, History: tc.history}
		if tc.failed != nil {
			a.Status = "FAILED"
		}
		var got []string
		for _, f := range failuresOf(&a) {
			star := map[bool]string{true: "*"}[f.Cut]
			got = append(got, fmt.Sprint(f.Code, " ", f.Attempts, " ", len(f.Message), star))
		}
		if got := strings.Join(got, "; "); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// A requeue counts from one again.
func TestRanges(t *testing.T) {
	for want, numbers := range map[string][]int{
		"": nil, "attempt 3": {3}, "attempts 1–7": {1, 2, 3, 4, 5, 6, 7}, "attempts 1–3, 5": {1, 2, 3, 5},
		"attempts 2–3, 1–2": {2, 3, 1, 2}, "attempts 1–2": {1, 1, 2}, "attempts 4": {4, 4},
	} {
		if got := ranges(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}

// The last attempt ended four minutes ago, and the next one is due in four.
func TestTimeline(t *testing.T) {
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	endless := func(r *row) { r.History[1].Outcome, r.History[1].EndedAt = "", time.Time{} }
	for name, tc := range map[string]struct {
		change func(r *row)
		want   string // the place and width of each bar
	}{
		"waiting": {
			func(r *row) { r.Group, r.NextAttemptAt = waiting, now.Add(4*time.Minute) },
			"retry 0+250, retry 250+250, now 750",
		},
		"stale":    {func(*row) {}, "retry 0+333, retry 333+333, now 1000"},
		"finished": {func(r *row) { r.Lock.Finished = true }, "retry 0+500, retry 500+500, now 1000"},
		"running": {func(r *row) {
			endless(r)
			r.Lock.Token, r.LockState = 2, lockHeld
		}, "retry 0+333, running 333+667, now 1000"},
		"requeued after 200 days": {
			func(r *row) { r.History[0].StartedAt = now.AddDate(0, 0, -200) }, "retry 0+999, retry 992+8, now 1000",
		},
		"crashed": {endless, "retry 0+333, no end recorded 333+8, now 1000"},
		"held by another": {func(r *row) {
			endless(r)
			r.Lock.Token, r.LockState = 3, lockHeld
		}, "retry 0+333, no end recorded 333+8, now 1000"},
		"malformed": {func(r *row) {
			endless(r)
			r.LockState = lockMalformed
		}, "retry 0+333, unknown 333+667, now 1000"},
	} {
		r := row{LockState: lockStale}
		r.ReadAt = now
		r.History = attempts([3]string{"retry"}, [3]string{"retry"})
		for i := range r.History {
			r.History[i].StartedAt = now.Add(time.Duration(4*i-12) * time.Minute)
			r.History[i].EndedAt = r.History[i].StartedAt.Add(4 * time.Minute)
		}
		tc.change(&r)
		line, bars := r.Timeline(), ""
		for _, a := range slices.Backward(line.Attempts) {
			bars += fmt.Sprintf("%s %d+%d, ", a.Outcome, a.X, a.Width)
		}
		if got := bars + fmt.Sprint("now ", line.Now); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestSpan(t *testing.T) {
	for seconds, want := range map[int]string{
		59: "59 s", 60: "1 min 00 s", 3599: "59 min 59 s", 3600: "1 h 00 min", 86399: "23 h 59 min", 86400: "1 d 0 h",
		200000: "2 d 7 h",
	} {
		if got := cli.Span(time.Duration(seconds) * time.Second); got != want {
			t.Errorf("%d s: %s, want %s", seconds, got, want)
		}
	}
}
