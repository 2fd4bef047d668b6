package browser

import (
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func TestThePageIsReadableInBothThemesAndFitsASmallScreen(t *testing.T) {
	p := newProfile(t)
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{360, 1024} {
			name := theme + map[int64]string{360: " narrow", 1024: " wide"}[width]
			t.Run(name, func(t *testing.T) {
				s := newSite(t, 0)
				b, other := p.in(t).open(s.room("notes")), p.in(t).open(s.room("notes"))
				b.Show(theme, width)
				other.Show(theme, width)
				b.shows("free")
				b.Looks(name + " free")
				b.Click("edit")
				b.shows("mine")
				b.Click("save")
				b.Is(`document.getElementById('saved').textContent`)
				b.Looks(name + " mine")
				other.shows("other")
				other.Click("edit")
				other.Is(`!document.getElementById('banner').hidden`)
				other.Looks(name + " other")
				if _, err := s.locks.Break(t.Context(), "notes"); err != nil {
					t.Fatal(err)
				}
				b.Click("save")
				b.Is(`!document.getElementById('banner').hidden`)
				b.Looks(name + " lost")
				b.Close()
				other.Close()
			})
		}
	}
}

func TestThePageIsUsedWithTheKeyboardAlone(t *testing.T) {
	s := newSite(t, 0)
	b := newProfile(t).open(s.room("notes"))
	b.shows("free")
	var order []string
	for range 4 {
		b.Do(chromedp.KeyEvent(kb.Tab))
		order = append(order, b.Eval(`document.activeElement.id || document.activeElement.textContent`))
	}
	want := []string{`"room"`, `"Open"`, `"text"`, `"edit"`}
	if !slices.Equal(order, want) {
		t.Errorf("Tab leads through %v, want %v", order, want)
	}
	if got, want := b.Eval(`getComputedStyle(document.activeElement).outlineStyle`), `"solid"`; got != want {
		t.Errorf("the focus is shown by an outline that is %s, want %s", got, want)
	}
	b.Do(chromedp.KeyEvent(kb.Enter))
	b.shows("mine")
	b.Is(`document.activeElement.id === 'text'`)
	b.Do(chromedp.KeyEvent(kb.Tab))
	b.Is(`document.activeElement.id === 'save'`)
	b.Do(chromedp.KeyEvent(kb.Tab))
	b.Do(chromedp.KeyEvent(kb.Enter))
	b.shows("free")
	b.Is(`document.activeElement.id === 'edit'`)
}
