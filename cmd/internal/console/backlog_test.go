package console_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"taskguard/cmd/internal/console"
	"taskguard/repo"
)

func TestBacklog(t *testing.T) {
	virtual(t, "is shown as last read, and a large one is read less often", func(t *testing.T) {
		source := newSource(analysis("a", "READY"), at(analysis("b", "QUEUED"), time.Hour),
			at(analysis("c", "QUEUED"), time.Hour))
		server := open(t, source, console.Options{})
		source.errs["Backlog"] = status.Error(codes.PermissionDenied, "odd")
		has(t, page(t, server, "/"), `data-id="a"`, "PERMISSION_DENIED", "Nothing is known yet")
		hasNot(t, page(t, server, "/"), `id="backlog-empty"`)

		now := storeNow().UTC()
		source.change(func() { delete(source.errs, "Backlog") })
		source.backlog = repo.Backlog{
			Running: 40, Waiting: 99_950, Stuck: 1, Created: 100, Ended: 2600, Top: 2000,
			Since: now.Add(-30 * time.Minute), OldestCreatedAt: now.Add(-2 * time.Hour),
			DrainedAt: now.Add(110 * time.Minute),
			Intervals: []repo.Interval{
				{From: now.Add(-15 * time.Minute), Started: 1, Finished: 1500, Failed: 500}, {From: now},
			},
		}
		time.Sleep(5 * time.Second)
		text := page(t, server, "/")
		has(t, text, `id="backlog-running">40<`, `id="backlog-waiting">99,950<`,
			`id="backlog-stuck" class="stuck">2</b> or more`, "<b>1 h 49 min</b>", "2,600 ended", "last 30 min",
			`viewBox="0 0 12 2000"`, `y="1500" width=".35" height="500"/>`, `<line class="now" x1="1.0`,
			"23:45 UTC</time> 1 started, 1,500 finished, 500 failed</li>",
			`title="2000-01-02 00:00:05 UTC">00:00 UTC</time>`)
		equal(t, "ages of the oldest", len(found(text, `Oldest unfinished`)), 1) // of two readings, two would differ
		for _, target := range []string{"/?state=READY", "/?q=a", "/?after=1"} {
			hasNot(t, page(t, server, target), `id="backlog"`)
		}

		source.change(func() { source.backlog.DrainedAt, source.backlog.Created = time.Time{}, 1_200_000 })
		for minutes, want := range []int{2, 3, 3, 3, 3, 3, 4} { // a reading costs 315 reads, and then 1,515
			page(t, server, "/")
			equal(t, fmt.Sprint("reads after ", minutes, " minutes"), source.calls("Backlog"), want)
			time.Sleep(time.Minute + 5*time.Second)
		}
		has(t, page(t, server, "/"), "<b>Not drained</b>")
		source.breaks(true)
		time.Sleep(time.Hour)
		page(t, server, "/")
		has(t, page(t, server, "/"), `id="backlog-running">40<`, "as of 00:06:35 UTC, 1 h ago.")
	})
	// A sorted page does not read what is stuck. The overview would show its number.
	t.Run("is not counted for a sorted page", func(t *testing.T) {
		source := newSource(at(analysis("lost", "QUEUED"), 4*time.Hour))
		source.backlog = repo.Backlog{At: storeNow(), Waiting: 1}
		for _, order := range []string{"id", "-updated", "age"} {
			server := open(t, source, console.Options{})
			hasNot(t, page(t, server, "/?sort="+order), `id="backlog"`)
			has(t, page(t, server, "/"), `id="backlog-stuck" class="stuck">1</b>`)
		}
	})
}
