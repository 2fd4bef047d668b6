package browser

import (
	"fmt"
	"testing"
	"time"

	"taskguard/lease/iso8601"
	"taskguard/repo"
)

// With BROWSER_SHOTS it makes the README's picture, docs/console.png: "console readme.png".
func TestTheREADMEsPictureShowsAWorkingDay(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write", "--limit", "6")
	stamp := func(ago time.Duration) string { return iso8601.Format(time.Now().Add(-ago)) }
	put := func(id string, created, updated time.Duration, fields map[string]any) {
		fields["createdAt"], fields["updatedAt"] = stamp(created), stamp(updated)
		s.Put(t, id, fields)
	}
	run := func(id string, started time.Duration, progress float64, message string) {
		put(id, started+20*time.Second, 12*time.Second, map[string]any{
			"status": "PROCESSING", "attempts": 1, "lockToken": 1, "startedAt": stamp(started),
			"lockOwner": "taskguard-worker-00042/0087244a81c5/VYPHQ5", "lockHeartbeatAt": stamp(12 * time.Second), "lockExpiresAt": stamp(-288 * time.Second),
			"progress": map[string]any{"fraction": progress, "message": message, "at": stamp(15 * time.Second)},
		})
	}
	for i, n := range []int{9, 12, 11, 13, 4, 0, 1, 8, 10, 14, 12, 9} { // in each interval, the oldest first
		for j := range n {
			ago := time.Duration(11-i)*repo.Step + time.Duration(j)*time.Second + 100*time.Second
			fields := map[string]any{"status": "READY", "attempts": 1, "lockToken": 1, "startedAt": stamp(ago + 40*time.Second)}
			if j == 3 || i == 4 && j > 0 {
				fields["status"], fields["error"] = "FAILED", map[string]any{"code": "http_503", "message": "the model is overloaded"}
			}
			put(fmt.Sprint("invoice-", 20600+20*i+j), ago+50*time.Second, ago, fields)
		}
	}
	run("contract-1187", 6*time.Minute, 0.62, "page 74 of 120")
	run("invoice-20931", 40*time.Second, 0.25, "page 2 of 8")
	put("contract-1190", 9*time.Minute, 2*time.Minute, map[string]any{
		"status": "QUEUED", "attempts": 2, "lockToken": 2, "nextAttemptAt": stamp(-95 * time.Second),
		"lastError": map[string]any{"code": "http_503", "message": "the model is overloaded"},
	})
	put("invoice-20938", 14*time.Second, 14*time.Second, map[string]any{"status": "QUEUED"})
	put("invoice-20930", 3*time.Minute, 70*time.Second, map[string]any{"status": "READY", "attempts": 1, "lockToken": 1, "startedAt": stamp(2 * time.Minute)})
	put("report-77", 50*time.Minute, 21*time.Minute, map[string]any{
		"status": "FAILED", "attempts": 1, "lockToken": 1, "startedAt": stamp(22 * time.Minute),
		"error": map[string]any{"code": "unreadable", "message": "the file has a password"},
	})

	b := s.open("/")
	b.Is(`document.querySelectorAll('tbody tr').length >= 6 && document.fonts.status === 'loaded'`)
	b.Is(`document.getElementById('live').dataset.live !== 'connecting'`)
	b.Is(`document.querySelectorAll('.plot .finished[height="0"]').length < 3 && document.getElementById('backlog-running').innerText === '2'`)
	for width, name := range map[int64]string{1280: "console readme", 400: "console busy"} {
		b.Show("light", width)
		b.Is(fmt.Sprintf(`innerWidth === %d && document.getAnimations().length === 0`, width))
		b.CheckLayout(name)
	}
}
