package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
)

// tabTo presses Tab until the focus is on the element with this id, and checks that
// each element on the way shows the focus.
func tabTo(b *Tab, id string) {
	b.T.Helper()
	var passed []string
	for range 100 {
		b.Press(kb.Tab)
		at := b.Eval(`document.activeElement.id || document.activeElement.className || document.activeElement.innerText || document.activeElement.tagName`)
		if got := b.Eval(`getComputedStyle(document.activeElement).outlineStyle`); got == `"none"` && at != `"BODY"` {
			b.T.Errorf("the focus on %s is not visible", at)
		}
		if at == fmt.Sprintf("%q", id) {
			return
		}
		passed = append(passed, at)
	}
	b.T.Fatalf("Tab does not lead to %s: %v", id, passed)
}

func TestAnAnalysisIsUnlockedWithOnlyTheKeyboard(t *testing.T) {
	t.Parallel()
	s := withStates(t, "--write")
	b := s.open("/")
	b.Focus()
	b.Show("dark", 1280)
	live(b)
	unlock := strings.Trim(b.Eval(row("held")+`.querySelector('[data-action="unlock"]').id`), `"`)
	// A heartbeat replaces the row and keeps the focus.
	tabTo(b, unlock)
	s.update("held", locked(8*time.Minute))
	b.Is(row("held") + `.innerText.includes('7 min')`)
	b.Is(fmt.Sprintf(`document.activeElement.id === %q`, unlock))
	b.CheckLayout("console keyboard, unlock in focus")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('confirm')?.dataset.action === 'unlock'`)
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('notice')?.innerText.startsWith('Unlocked. ')`)
	b.CheckLayout("console unlocked")
}
