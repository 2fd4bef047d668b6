package browser

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"taskguard/lease/iso8601"
)

// withMany returns a site with 120 analyses: 2 run, 3 wait for their next attempt, 5 are stuck, 30
// are FAILED with the code downstream, 20 with bad_input, and 60 are READY. They have only 40
// different times.
func withMany(t *testing.T, flags ...string) *site {
	t.Helper()
	s := newSite(t, flags...)
	for i := range 120 {
		at := iso8601.Format(time.Now().Add(-time.Duration(i%40+10) * time.Minute))
		fields := map[string]any{"status": "READY", "attempts": 1, "lockToken": 1, "createdAt": at, "startedAt": at, "updatedAt": at, "finishedBy": "w/1"}
		failed := func(code, message string) {
			fields["status"], fields["error"] = "FAILED", map[string]any{"code": code, "message": message}
		}
		switch {
		case i < 2:
			fields = reported(locked(5 * time.Minute))
			fields["createdAt"], fields["startedAt"] = at, at
		case i < 5:
			fields["status"], fields["nextAttemptAt"] = "QUEUED", iso8601.Format(time.Now().Add(time.Duration(i)*time.Minute))
			fields["lastError"] = map[string]any{"code": "downstream", "message": "503"}
		case i < 10:
			fields["status"] = "QUEUED"
		case i < 40:
			failed("downstream", []string{"503 Service Unavailable", traceback}[i%2])
		case i < 60:
			failed("bad_input", "not a letter")
		}
		s.Put(t, fmt.Sprintf("analysis-%04d", i), fields)
	}
	return s
}

func TestTheConsoleShowsEachOfManyAnalysesOnceAndRequeuesThoseWithACode(t *testing.T) {
	t.Parallel()
	s := withMany(t, "--write")
	b := s.open("/")
	b.Focus()
	live(b)
	b.Is(`[...document.querySelectorAll('#tally b')].map((e) => e.innerText).join(' ') === '120 8 2 60 50'`)
	b.Is(`[...document.querySelectorAll('#rows .group')].map((e) => e.id).join(' ') === 'group-running group-waiting group-stuck group-'`)
	for theme, width := range map[string]int64{"light": 1280, "dark": 360} {
		b.Show(theme, width)
		b.CheckLayout(fmt.Sprintf("console of many, %s %d", theme, width))
	}
	var all []string
	for more := true; more; {
		all = append(all, strings.Fields(strings.Trim(b.Eval(ids), `"`))...)
		if more = b.Eval(`!document.getElementById('next')`) == "false"; more {
			b.Go(strings.Trim(b.Eval(`document.getElementById('next').href`), `"`))
			b.Is(`document.getElementById('newest') && document.querySelectorAll('#rows > tr').length > 0`)
		}
	}
	if slices.Sort(all); len(all) != 120 || len(slices.Compact(all)) != 120 {
		t.Errorf("the pages have %d analyses, %d different", len(all), len(slices.Compact(all)))
	}
	b.Go(s.url)
	b.Do(chromedp.SendKeys(chromedp.ID("q"), "analysis-002\r"))
	b.IsAfterLoad(`location.search === '?q=analysis-002'`)
	b.Is(`document.querySelectorAll('#rows > [data-id]').length === 10`)

	tabTo(b, "to-failures")
	b.Press(kb.Enter)
	b.IsAfterLoad(`[...document.querySelectorAll('.failure .n')].map((e) => e.innerText).join(' ') === '30 15 15 20 20'`)
	for _, width := range []int64{1280, 400} {
		b.Show("light", width)
		b.CheckLayout(fmt.Sprint("console failures of many ", width))
	}
	b.Is(`[...document.querySelectorAll('.failure .message')].every((e) => e.lastElementChild.getBoundingClientRect().bottom <= e.getBoundingClientRect().bottom)`) // its end is visible
	b.Do(chromedp.Click(chromedp.CSS(`[data-code=downstream] [data-action=requeue-failed]`)))
	b.IsAfterLoad(`document.getElementById('matched').innerText === '30' && document.getElementById('would').innerText === '30'`)
	b.CheckLayout("console requeue failures")
	s.update("analysis-0020", map[string]any{"updatedAt": "2020-01-01T00:00:00.000Z", "status": "PROCESSING"}) // in between
	if fields := s.Fields(t, "analysis-0021"); fields["status"] != "FAILED" {
		t.Error("it was requeued before it was confirmed")
	}
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('result').innerText === '29 requeued, 0 skipped, 0 failed, 0 left.'`)
	b.Go(s.url + "/?state=FAILED&code=downstream")
	b.Is(`!document.getElementById('empty').hidden`)
}
