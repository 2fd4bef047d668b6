package browser

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"

	"taskguard/cmd/chromiumtest"
	"taskguard/lease/iso8601"
)

// front shows b in front of the other tabs of its window.
func front(b *chromiumtest.Tab) {
	b.T.Helper()
	chromiumtest.Call(b, page.BringToFront, cdp.Empty{})
	b.Is(`!document.hidden`)
}

func TestAHiddenPageSendsNoRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.analysis("a", map[string]any{"status": "QUEUED"})
	tabs := []*chromiumtest.Tab{s.open("/")}
	live(tabs[0])
	for range 2 {
		b := tabs[0].OpenBeside(s.url)
		live(b)
		tabs = append(tabs, b)
	}
	for _, b := range tabs[:2] {
		b.Is(`document.hidden && document.getElementById('live').dataset.live === 'connecting'`)
	}
	s.Merge(t, "a", map[string]any{"status": "READY"})
	tabs[2].Is(row("a") + `.dataset.state === 'READY'`)
	if got := tabs[0].Eval(row("a") + `.dataset.state`); got != `"QUEUED"` {
		t.Errorf("the hidden page shows %s", got)
	}
	front(tabs[0])
	tabs[0].Is(row("a") + `.dataset.state === 'READY' && document.getElementById('live').dataset.live === 'live'`)
	wantMarked(tabs[0])
	tabs[0].Click("pause")
	front(tabs[1])
	tabs[1].Is(`document.getElementById('live').dataset.live === 'live'`)
	front(tabs[0])
	tabs[0].Is(`document.getElementById('live').dataset.live === 'paused'`)
}

func TestAStuckAnalysisIsListedFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--limit", "2")
	for _, id := range []string{"b", "c", "d"} {
		s.analysis(id, map[string]any{"status": "READY"})
	}
	stuck := locked(-time.Hour)
	stuck["updatedAt"], stuck["createdAt"] = iso8601.Format(time.Now().Add(-2*time.Hour)), iso8601.Format(time.Now().Add(-3*time.Hour))
	s.analysis("a", stuck)
	b := s.open("/?lock=stale")
	live(b)
	b.Is(ids + ` === 'a'`)
	b.Go(s.url)
	live(b)
	if got := b.Eval(`[document.querySelectorAll('#rows > tr').length, document.querySelector('#rows > tr').dataset.id]`); got != `[3,"a"]` {
		t.Errorf("the list has %s, want three rows and a first", got)
	}
	s.Merge(t, "a", map[string]any{"status": "READY", "updatedAt": iso8601.Format(time.Now()), "lockOwner": nil})
	b.Is(row("a") + `.dataset.state === 'READY' && document.querySelectorAll('#rows > tr').length === 2`)
	wantMarked(b)
}
