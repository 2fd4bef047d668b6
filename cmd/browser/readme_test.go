package browser

import (
	"testing"
	"time"

	"taskguard/lease/iso8601"
)

// With BROWSER_SHOTS it makes the README's picture, docs/console.png: "console readme.png".
func TestTheREADMEsPictureShowsAWorkingDay(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write")
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
	b.Show("light", 1280)
	b.Is(`innerWidth === 1280 && document.getAnimations().length === 0`)
	b.CheckLayout("console readme")
}
