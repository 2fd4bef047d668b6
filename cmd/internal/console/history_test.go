package console

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"taskguard/lease/analysislock"
)

// shown returns the failures of a as "code attempts length", with a star if the middle of the message is missing.
func shown(a *analysislock.Analysis) (all []string) {
	for _, f := range failuresOf(a) {
		text := fmt.Sprintf("%s %s %d", f.Code, f.Attempts, len(f.Message))
		if f.Cut {
			text += "*"
		}
		all = append(all, text)
	}
	return all
}

// attempts returns a history with these outcomes, codes and messages.
func attempts(entries ...[3]string) (all []analysislock.Attempt) {
	for i, e := range entries {
		all = append(all, analysislock.Attempt{
			Number: i + 1, Token: int64(i + 1), Outcome: e[0], Code: e[1], Message: analysislock.Kept(e[2]),
		})
	}
	return all
}

func TestFailuresOf_TheSameErrorOfSeveralAttemptsIsShownOnceAndWhole(t *testing.T) {
	long, other := strings.Repeat("x", 999)+"KeyError", strings.Repeat("y", 999)
	retry := [3]string{"retry", "exit_1", long}
	for name, tc := range map[string]struct {
		a    analysislock.Analysis
		want []string
	}{
		"nothing failed": {analysislock.Analysis{History: attempts([3]string{"ready"})}, nil},
		"three attempts are left": {analysislock.Analysis{
			LastError: &analysislock.Error{Code: "exit_1", Message: long}, History: attempts(retry, retry, retry),
		}, []string{"exit_1 attempts 1–3 1007"}},
		"no attempt is left": {analysislock.Analysis{
			Status: "FAILED", Error: &analysislock.Error{Code: "attempts_exhausted", Message: "attempt 2 was the last: " + long},
			LastError: &analysislock.Error{Code: "exit_1", Message: long},
			History:   attempts(retry, [3]string{"failed", "attempts_exhausted", "attempt 2 was the last: " + long}),
		}, []string{"exit_1 attempts 1–2 1007"}},
		"another error between": {analysislock.Analysis{
			LastError: &analysislock.Error{Code: "exit_1", Message: long},
			History:   attempts(retry, [3]string{"retry", "exit_1", other}, retry),
		}, []string{"exit_1 attempts 1, 3 1007", "exit_1 attempt 2 255*"}},
		"the same message with another code": {analysislock.Analysis{
			LastError: &analysislock.Error{Code: "exit_1", Message: "no"},
			History:   attempts([3]string{"retry", "exit_2", "no"}, [3]string{"retry", "exit_1", "no"}),
		}, []string{"exit_1 attempt 2 2", "exit_2 attempt 1 2"}},
		"a permanent error after a temporary one": {analysislock.Analysis{
			Status: "FAILED", Error: &analysislock.Error{Code: "too_large", Message: other},
			LastError: &analysislock.Error{Code: "exit_1", Message: long},
			History:   attempts(retry, [3]string{"failed", "too_large", other}),
		}, []string{"too_large attempt 2 999", "exit_1 attempt 1 1007"}},
		"crashes, whose messages name the attempt": {analysislock.Analysis{
			LastError: &analysislock.Error{Code: "crashed", Message: "attempt 2"},
			History:   attempts([3]string{"crashed"}, [3]string{"crashed"}, [3]string{}),
		}, []string{"crashed attempts 1–2 9"}},
		"a history that has lost the attempt": {analysislock.Analysis{
			LastError: &analysislock.Error{Code: "exit_1", Message: "no"},
		}, []string{"exit_1  2"}},
	} {
		if got := shown(&tc.a); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestRanges_ARequeueCountsFromOneAgain(t *testing.T) {
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
func TestTimeline_TheLineEndsWithTheNextAttemptTheLastOneOrNow(t *testing.T) {
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		change func(r *row)
		want   string
	}{
		"waiting":  {func(r *row) { r.Group, r.NextAttemptAt = waiting, now.Add(4*time.Minute) }, "0+250 250+250, now 750"},
		"stale":    {func(*row) {}, "0+333 333+333, now 1000"},
		"finished": {func(r *row) { r.Lock.Finished = true }, "0+500 500+500, now 1000"},
		"running": {func(r *row) {
			r.History[1].Outcome, r.History[1].EndedAt = "", time.Time{}
			r.Lock.Token, r.LockState = 2, lockHeld
		}, "0+333 333+667, now 1000"},
		"requeued after 200 days": {func(r *row) { r.History[0].StartedAt = now.AddDate(0, 0, -200) }, "0+999 992+8, now 1000"},
		"crashed":                 {func(r *row) { r.History[1].Outcome, r.History[1].EndedAt = "", time.Time{} }, "0+333 333+8, now 1000"},
	} {
		r := row{LockState: lockStale}
		r.ReadAt = now
		r.History = attempts([3]string{"retry"}, [3]string{"retry"})
		for i := range r.History {
			r.History[i].StartedAt = now.Add(time.Duration(4*i-12) * time.Minute)
			r.History[i].EndedAt = r.History[i].StartedAt.Add(4 * time.Minute)
		}
		tc.change(&r)
		line := r.Timeline()
		var bars []string
		for _, a := range slices.Backward(line.Attempts) {
			bars = append(bars, fmt.Sprintf("%d+%d", a.X, a.Width))
		}
		if got := fmt.Sprintf("%s, now %d", strings.Join(bars, " "), line.Now); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
