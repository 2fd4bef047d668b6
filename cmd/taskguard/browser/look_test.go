package browser

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"taskguard/cmd/chromiumtest"
)

// beyond is a script for what lies, also in part, outside the window's width. What
// scrolls by itself may: code is not broken into lines. What ends in an ellipsis may,
// too, and what is for the ears alone, a pixel wide.
const beyond = `[...document.querySelectorAll('body *')]
	.filter((e) => e.checkVisibility() && !e.closest('pre, .away, .skip, svg') && e.getClientRects().length)
	.filter((e) => { for (let a = e; a; a = a.parentElement) if (a.clientWidth === 1 || getComputedStyle(a).textOverflow === 'ellipsis') return false; return true; })
	.map((e) => [e, e.getBoundingClientRect()])
	.filter(([, at]) => at.right > innerWidth + 0.5 || at.left < -0.5)
	.map(([e, at]) => [e.tagName, e.id || e.className, Math.round(at.left), Math.round(at.right)]).slice(0, 5)`

// cropped is a script for texts of which a part is not to be seen, without an
// ellipsis or a title that says so.
const cropped = `[...document.querySelectorAll('body *')]
	.filter((e) => e.checkVisibility() && !e.closest('pre, .away, .skip, svg, input') && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1)
	.filter((e) => getComputedStyle(e).overflowX !== 'visible' && getComputedStyle(e).textOverflow !== 'ellipsis')
	.map((e) => [e.tagName, e.id || e.className, e.scrollWidth, e.clientWidth]).slice(0, 5)`

func TestEveryPageIsReadableInBothThemesAndFitsASmallScreen(t *testing.T) {
	s := withStates(t, "--write")
	s.analysis("stuck", map[string]any{"status": "QUEUED", "updatedAt": "2020-01-01T00:00:00.000Z"})
	left := locked(-time.Minute)
	left["updatedAt"] = "2020-01-02T00:00:00.000Z"
	s.analysis("stuck and stale", left)
	s.Put(t, "undated", map[string]any{"status": "QUEUED"})
	readOnly := newSite(t)
	pages := []struct {
		name, url string
		texts     int
	}{
		{"list", s.url, 0},
		{"list filtered", s.url + "/?lock=stale", 0},
		{"list of what is stuck", s.url + "/?lock=stuck", 0},
		{"list of a state", s.url + "/?state=FAILED", 0},
		{"list found nothing", s.url + "/?q=nothing-like-it", 0},
		{"list empty, read only", readOnly.url, 0},
		{"detail held", s.url + "/analysis?id=held", 0},
		{"detail stale", s.url + "/analysis?id=stale", 0},
		{"detail undated", s.url + "/analysis?id=undated", 0},
		{"detail failed", s.url + "/analysis?id=failed", 0},
		{"detail malformed", s.url + "/analysis?id=malformed", 0},
		{"detail long", s.url + "/analysis?id=" + url.QueryEscape(strings.ReplaceAll(longID, "/", "-")), 0},
		{"detail with contents", s.url + "/analysis?id=ready&show=all", 0},
		{"confirm unlock", s.url + "/unlock?id=held", 0},
		{"confirm requeue", s.url + "/requeue?id=failed", 0},
		{"confirm requeue refused", s.url + "/requeue?id=held", 0},
		{"confirm long", s.url + "/unlock?id=" + url.QueryEscape(strings.ReplaceAll(longID, "/", "-")), 0},
		{"problem", s.url + "/analysis?id=nobody", 5},
	}
	p := chromiumtest.NewProfile(t)
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{360, 1280} {
			t.Run(fmt.Sprintf("%s %d", theme, width), func(t *testing.T) {
				for _, page := range pages {
					b := p.In(t).Open("about:blank")
					b.Show(theme, width)
					b.Go(page.url)
					b.Is(`document.getElementById('main') && document.fonts.status === 'loaded'`)
					b.Is(`!document.getElementById('live') || document.getElementById('live').dataset.live !== 'connecting' || !document.body.dataset.poll`)
					name := fmt.Sprintf("console %s %s %d", page.name, theme, width)
					b.CheckLayout(name)
					for what, script := range map[string]string{"outside the window": beyond, "cropped": cropped} {
						if got := b.Eval(script); got != "[]" {
							t.Errorf("%s: %s: %s", name, what, got)
						}
					}
					b.Close()
				}
			})
		}
	}
}

// The owner is what tells one lock from another.
func TestWhoHoldsALockHasRoomAtEachWidth(t *testing.T) {
	s := newSite(t, "--write")
	s.analysis("held", locked(time.Hour))
	b := chromiumtest.NewProfile(t).Open(s.url)
	for _, width := range []int64{360, 1153, 1248, 1249, 1280} {
		b.Show("light", width)
		b.Is(fmt.Sprintf(`innerWidth === %d`, width))
		if got := b.Eval(row("held") + `.querySelector('.owner').clientWidth >= 150`); got != "true" {
			t.Errorf("at %d pixels the owner has %s", width, b.Eval(row("held")+`.querySelector('.owner').clientWidth`))
		}
	}
}

func TestTheThemesDiffer(t *testing.T) {
	s := newSite(t)
	b := chromiumtest.NewProfile(t).Open(s.url)
	ground := map[string]string{}
	for _, theme := range []string{"light", "dark"} {
		b.Show(theme, 1280)
		ground[theme] = b.Eval(`getComputedStyle(document.body).backgroundColor`)
	}
	if ground["light"] == ground["dark"] {
		t.Errorf("both are %s", ground["light"])
	}
}
