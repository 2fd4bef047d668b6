package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp/kb"
)

// crowded returns a site, with changes, that has 300 analyses: some run, wait, are stuck or uncertain, and
// forty have failed for three causes.
func crowded(t *testing.T) *site {
	t.Helper()
	s := newSite(t, "--write")
	ended := func(i int) string { return ago(time.Duration(i)*30*time.Second + time.Minute) }
	for i := range 300 {
		id, fields := fmt.Sprintf("invoice-2026-11-%05d", i), map[string]any{
			"status": "READY", "attempts": 1, "createdAt": ago(time.Duration(i)*35*time.Second + 6*time.Minute),
			"startedAt": ago(time.Duration(i)*30*time.Second + 2*time.Minute), "updatedAt": ended(i), "lockToken": 3, "finishedBy": "a/b/c",
		}
		switch {
		case i < 6:
			fields = locked(4*time.Minute + time.Duration(i)*7*time.Second)
			fields["progress"] = map[string]any{"fraction": float64(i+1) / 7, "message": fmt.Sprintf("page %d of 7", i+1), "at": ago(3 * time.Second)}
			fields["startedAt"] = ago(time.Duration(i+1) * time.Minute)
			fields["heartbeatAt"] = ago(20 * time.Second)
		case i < 14:
			fields["status"], fields["finishedBy"], fields["nextAttemptAt"] = "QUEUED", nil, ago(-time.Duration(i)*20*time.Second)
			fields["attempts"] = 2
			fields["lastError"] = map[string]any{"code": "http_503", "message": "the model is overloaded"}
		case i < 17:
			fields = map[string]any{"status": "QUEUED", "createdAt": ago(5 * time.Hour), "updatedAt": ago(4 * time.Hour)}
		case i == 17:
			fields["status"], fields["error"] = "FAILED", map[string]any{"code": "effect_uncertain", "message": "act charge"}
			fields["openEffects"] = 1
			fields["effects"] = map[string]any{"charge": map[string]any{"state": "started", "token": 3, "at": ago(time.Hour)}}
		case i < 58:
			cause := [][2]string{{"exit_1", traceback}, {"http_400", "the model refuses the input: it has no text"}, {"timeout", "the run passed RUN_TIMEOUT (25m0s)"}}[i%3]
			fields["status"], fields["error"] = "FAILED", map[string]any{"code": cause[0], "message": cause[1]}
			fields["attempts"] = 1 + i%3
		case i < 62:
			fields = map[string]any{"status": "QUEUED", "createdAt": ago(time.Duration(i) * time.Second), "updatedAt": ago(time.Duration(i) * time.Second)}
		}
		s.analysis(id, fields)
	}
	return s
}

// window sets the size of b's window.
func window(b *Tab, theme string, width, height int64) {
	b.T.Helper()
	b.Show(theme, width)
	Call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
}

// visible is a script that returns how many rows of analyses are whole on the first screen.
const visible = `[...document.querySelectorAll('#rows > [data-id]')].filter((r) => r.getBoundingClientRect().bottom <= innerHeight).length`

func TestTheFirstScreenOfManyAnalysesHasWhatNeedsAttentionAndALineForEach(t *testing.T) {
	t.Parallel()
	s := crowded(t)
	b := live(s.open("/"))
	window(b, "light", 1280, 900)
	b.Is(visible + ` >= 8`)
	b.Is(`[...document.querySelectorAll('#rows > .group')].map((r) => r.id).join(' ') === 'group-attention group-waiting group-running group-others'`)
	b.Is(`[...document.querySelectorAll('#rows > .cause')].map((r) => r.dataset.code).join(' ') === 'exit_1 http_400 timeout'`)
	b.Is(`document.querySelector('#rows > [data-id]').dataset.group === 'uncertain'`)
	if got := b.Eval(`[...document.querySelectorAll('#rows > tr, #filter, #tally')].filter((e) => e.clientHeight > 36).map((e) => e.id)`); got != "[]" {
		t.Errorf("these take more than a line at 1280: %s", got)
	}
	if got := b.Eval(`[...document.querySelectorAll('#rows .id a')].filter((e) => e.getClientRects().length !== 1).length`); got != "0" {
		t.Errorf("%s ids wrap", got)
	}
	b.Is(`document.getElementById('backlog').open === false && document.querySelector('.plot') && !document.querySelector('.plot').checkVisibility()`)
	b.Click("backlog-title")
	b.Is(`document.querySelector('.plot .now').checkVisibility() && document.querySelector('.axis b').innerText === 'now'`)
	s.update("invoice-2026-11-00005", map[string]any{"progress": map[string]any{"fraction": 0.99}})
	b.Is(row("invoice-2026-11-00005") + `.innerText.includes('99 %') && document.getElementById('backlog').open`)

	// The times are this browser's, and UTC on hover.
	b.Is(`(() => { const e = document.querySelector('.axis time'), at = new Date(e.dateTime);
		return e.innerText === at.toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit' }) && e.title.endsWith(' UTC'); })()`)
	window(b, "light", 400, 900)
	b.CheckLayout("crowded 400")
}

// A poll replaces the rows, and neither the selection nor the open menu.
func TestSelectedAnalysesAreChangedTogetherWithOnlyTheKeyboard(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write")
	for _, id := range []string{"a", "b", "c"} {
		s.analysis(id, map[string]any{"status": "FAILED", "attempts": 1, "error": map[string]any{"code": "exit_1", "message": "no"}})
	}
	s.analysis("done", map[string]any{"status": "READY"})
	b := s.open("/")
	b.Focus()
	b.Show("light", 1280)
	live(b)
	b.Is(`document.getElementById('requeue-selected').disabled && !document.querySelector('#rows [data-id=done] input')`)
	tabTo(b, "pick-all")
	b.Press(" ")
	b.Is(`document.getElementById('selected').innerText === '3 selected:' && !document.getElementById('requeue-selected').disabled`)
	key := strings.Trim(b.Eval(row("a")+`.dataset.key`), `"`)
	tabTo(b, "pick-"+key)
	b.Press(" ")
	s.update("b", map[string]any{"error": map[string]any{"code": "exit_2", "message": "no"}})
	b.Is(row("b") + `.innerText.includes('exit_2') && ` + row("b") + `.querySelector('input').checked && !` + row("a") + `.querySelector('input').checked`)
	b.Is(`document.getElementById('selected').innerText === '2 selected:' && document.getElementById('pick-all').indeterminate`)

	b.Eval(`document.getElementById('filter').querySelector('button').focus(), 0`)
	tabTo(b, "requeue-selected")
	b.Press(kb.Enter)
	b.Is(`document.querySelectorAll('#picks li').length === 2`)
	s.update("b", map[string]any{"status": "READY"}) // it has changed since it was shown
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.Is(`document.getElementById('result')?.innerText.startsWith('1 requeued, 1 to look at') && document.querySelector('#untouched [data-id=b]').innerText.includes('It has changed since you looked')`)
	if got := fmt.Sprint(s.Fields(t, "a")["status"], s.Fields(t, "b")["status"], s.Fields(t, "c")["status"]); got != "FAILEDREADYQUEUED" {
		t.Errorf("the states are %s", got)
	}
}
