package console_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/repo"
)

func TestTheOverviewShowsTheBacklogAsLastReadAndReadsALargeOneLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newSource(analysis("a", "READY"), at(analysis("b", "QUEUED"), time.Hour), at(analysis("c", "QUEUED"), time.Hour))
		server := open(t, source, console.Options{})
		source.errs["Backlog"] = status.Error(codes.PermissionDenied, "odd")
		has(t, page(t, server, "/"), `data-id="a"`, "<strong>Firestore refuses: this account has no permission (PERMISSION_DENIED). Nothing is known yet.</strong>")
		hasNot(t, page(t, server, "/"), `id="backlog-empty"`)
		now := storeNow().UTC()
		source.change(func() { delete(source.errs, "Backlog") })
		source.backlog = repo.Backlog{
			Running: 40, Waiting: 99_950, Stuck: 1, Created: 100, Ended: 2600, Since: now.Add(-30 * time.Minute), OldestCreatedAt: now.Add(-2 * time.Hour), DrainedAt: now.Add(110 * time.Minute), Top: 2000,
			Intervals: []repo.Interval{{From: now.Add(-15 * time.Minute), Started: 1, Finished: 1500, Failed: 500}, {From: now}},
		}
		time.Sleep(5 * time.Second)
		text := page(t, server, "/")
		has(t, text, `id="backlog-running">40<`, `id="backlog-waiting">99,950<`, `id="backlog-stuck" class="stuck">2</b> or more stuck. `, "Drained in about <b>1 h 49 min</b> at the present rate, if no more are created.", "2,600 ended and 100 were created in the last 30 min.",
			`viewBox="0 0 12 2000"`, `height="1500"/><rect class="state failed" x=".5" y="1500" width=".35" height="500"/>`, "23:45 UTC</time> 1 started, 1,500 finished, 500 failed</li>", `As of <time datetime="2000-01-02T00:00:05.000Z" data-local="clock" title="2000-01-02 00:00:05 UTC">00:00 UTC</time>`)
		has(t, text, `<line class="now" x1="1.0`, "<b>now</b>")
		if n := strings.Count(strings.ToLower(text), "oldest unfinished"); n != 1 { // two would differ, as they are of two readings
			t.Errorf("%d ages of the oldest", n)
		}
		for _, target := range []string{"/?state=READY", "/?q=a", "/?after=1"} {
			hasNot(t, page(t, server, target), `id="backlog"`)
		}
		source.change(func() { source.backlog.DrainedAt, source.backlog.Created = time.Time{}, 1_200_000 })
		for minutes, want := range []int{2, 3, 3, 3, 3, 3, 4} { // a reading costs 315 reads, and then 1,515
			if page(t, server, "/"); source.calls("Backlog") != want {
				t.Errorf("after %d minutes it was read %d times, want %d", minutes, source.calls("Backlog"), want)
			}
			time.Sleep(time.Minute + 5*time.Second)
		}
		has(t, page(t, server, "/"), "<b>Not drained</b>: nothing ends.")
		source.change(func() { source.unavailable = true })
		time.Sleep(time.Hour)
		page(t, server, "/")
		has(t, page(t, server, "/"), `id="backlog-running">40<`, "<strong>Firestore does not answer. What is shown is as of 00:06:35 UTC, 1 h ago.</strong>")
	})
}

// A sorted page does not read what is stuck. The overview would show its number.
func TestASortedPageCountsNoBacklog(t *testing.T) {
	source := newSource(at(analysis("lost", "QUEUED"), 4*time.Hour))
	source.backlog = repo.Backlog{At: storeNow(), Waiting: 1}
	for _, order := range []string{"id", "-updated", "age"} {
		server := open(t, source, console.Options{})
		hasNot(t, page(t, server, "/?sort="+order), `id="backlog"`)
		has(t, page(t, server, "/"), `id="backlog-stuck" class="stuck">1</b> or more stuck.`)
	}
}

// Recovery has just found its task in the queue, and marked it.
func TestAMarkIsNoNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		marked := analysis("marked", "QUEUED")
		marked.UpdatedAt, marked.NextAttemptAt = storeNow(), storeNow()
		text := page(t, open(t, newSource(marked), console.Options{}), "/")
		has(t, text, "waiting in the queue")
		hasNot(t, text, "next attempt in")
	})
}
