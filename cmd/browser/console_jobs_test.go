package browser

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"golang.org/x/sync/errgroup"

	"taskguard/lease/iso8601"
)

// withMany returns a site with 5,000 analyses: 10 run, 20 wait for their next attempt, 120 are
// QUEUED, and 1,000 are FAILED, 300 of them with the code downstream. They have only 1,000
// different times.
func withMany(t *testing.T, flags ...string) *site {
	t.Helper()
	s := newSite(t, flags...)
	var puts errgroup.Group
	puts.SetLimit(8)
	for i := range 5000 {
		at := iso8601.Format(time.Now().Add(-time.Duration(i%1000+10) * time.Minute))
		fields := map[string]any{"status": "READY", "attempts": 1, "lockToken": 1, "createdAt": at, "startedAt": at, "updatedAt": at, "finishedBy": "w/1"}
		failed := func(code string) {
			fields["status"], fields["error"] = "FAILED", map[string]any{"code": code, "message": "the cause of " + code}
		}
		switch {
		case i < 10:
			fields = reported(locked(5 * time.Minute))
			fields["createdAt"], fields["startedAt"] = at, at
		case i < 30:
			fields["status"], fields["nextAttemptAt"] = "QUEUED", iso8601.Format(time.Now().Add(time.Duration(i)*time.Minute))
			fields["lastError"] = map[string]any{"code": "downstream", "message": "503"}
		case i < 150:
			fields["status"] = "QUEUED"
		case i < 450:
			failed("downstream")
		case i < 1150:
			failed([]string{"bad_input", "result_too_large"}[rand.IntN(2)])
		}
		puts.Go(func() error { s.Put(t, fmt.Sprintf("analysis-%04d", i), fields); return nil })
	}
	_ = puts.Wait()
	return s
}

// walk returns the ids of all pages from this one on.
func walk(b *Tab) (all []string) {
	b.T.Helper()
	for {
		all = append(all, strings.Fields(strings.Trim(b.Eval(ids), `"`))...)
		if b.Eval(`!document.getElementById('next')`) == "true" {
			return all
		}
		address := b.Eval(`document.getElementById('next').href`)
		b.Go(strings.Trim(address, `"`))
		b.Is(`document.getElementById('newest') && document.querySelectorAll('#rows > tr').length > 0`)
	}
}

func TestTheConsoleShowsEachOf5000AnalysesOnceAndRequeuesThoseWithACode(t *testing.T) {
	t.Parallel()
	s := withMany(t, "--write")
	b := s.open("/")
	b.Focus()
	live(b)
	b.Is(`[...document.querySelectorAll('#tally b')].map((e) => e.innerText).join(' ') === '5,000 140 10 3,850 1,000'`)
	b.Is(`[...document.querySelectorAll('#rows .group')].map((e) => e.id).join(' ') === 'group-running group-waiting group-stuck group-'`)
	if got := b.Eval(`document.querySelectorAll('[data-group=running] progress').length + ' ' + document.querySelectorAll('[data-group=waiting] [data-until]').length`); got != `"10 20"` {
		t.Errorf("running and waiting are %s", got)
	}
	b.Is(`document.getElementById('oldest').innerText.includes('created ')`)
	for theme, width := range map[string]int64{"light": 1280, "dark": 360} {
		b.Show(theme, width)
		b.CheckLayout(fmt.Sprintf("console of many, %s %d", theme, width))
	}

	all := walk(b)
	if slices.Sort(all); len(all) != 5000 || len(slices.Compact(all)) != 5000 {
		t.Errorf("the pages have %d analyses, %d different", len(all), len(slices.Compact(all)))
	}
	b.Go(s.url + "/?state=QUEUED&code=downstream")
	b.Is(`document.querySelectorAll('#rows > [data-id]').length === 20`)
	b.Go(s.url + "/?since=30m&older=25m")
	if got := len(walk(b)); got < 15 || got > 30 {
		t.Errorf("%d analyses were updated within five minutes", got)
	}
	b.Go(s.url)
	b.Do(chromedp.SendKeys(chromedp.ID("q"), "analysis-012\r"))
	b.IsAfterLoad(`location.search === '?q=analysis-012'`)
	b.Is(`document.querySelectorAll('#rows > [data-id]').length === 10`)

	tabTo(b, "to-failures")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.querySelectorAll('.failure').length === 3`)
	const group = `document.querySelector('[data-code=downstream] .n').innerText`
	if got := b.Eval(group); got != `"300"` {
		t.Errorf("%s failed downstream", got)
	}
	b.CheckLayout("console failures of many")
	b.Do(chromedp.Click(chromedp.CSS(`[data-code=downstream] [data-action=requeue-failed]`)))
	b.IsAfterLoad(`document.getElementById('matched').innerText === '300' && document.getElementById('would').innerText === '300'`)
	b.CheckLayout("console requeue failures")
	s.update("analysis-0200", map[string]any{"updatedAt": "2020-01-01T00:00:00.000Z", "status": "PROCESSING"}) // in between
	if fields := s.Fields(t, "analysis-0201"); fields["status"] != "FAILED" {
		t.Error("it was requeued before it was confirmed")
	}
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('result').innerText === '299 requeued, 0 skipped, 0 failed, 0 left.'`)
	for deadline := time.Now().Add(Patience); len(s.deliveries()) < 299 && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	delivered := s.deliveries()
	slices.Sort(delivered)
	if len(slices.Compact(delivered)) != 299 {
		t.Errorf("%d were delivered", len(slices.Compact(delivered)))
	}
	b.Go(s.url + "/?state=FAILED&code=downstream")
	b.Is(`!document.getElementById('empty').hidden`)
}
