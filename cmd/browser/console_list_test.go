package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp/kb"
)

// invoice is the id of an analysis of a crowded site.
func invoice(i int) string { return fmt.Sprintf("invoice-2026-11-%05d", i) }

// crowded returns a site that has 300 analyses: some run, wait, are stuck or uncertain, and forty have failed for
// three causes.
func crowded(t *testing.T) *site {
	t.Helper()
	s := newSite(t, "--write")
	causes := []map[string]any{
		problem("exit_1", traceback), problem("http_400", "the input has no text"), problem("timeout", "25m0s"),
	}
	for i := range 300 {
		age := time.Duration(i) * 30 * time.Second
		fields := map[string]any{
			"status": "READY", "attempts": 1, "lockToken": 3, "finishedBy": "a/b/c",
			"createdAt": ago(age + 6*time.Minute), "startedAt": ago(age + 2*time.Minute),
			"updatedAt": ago(age + time.Minute),
		}
		switch {
		case i < 6:
			fields = locked(4 * time.Minute)
			fields["startedAt"], fields["heartbeatAt"] = ago(time.Duration(i+1)*time.Minute), ago(20*time.Second)
		case i < 14:
			fields["status"], fields["finishedBy"], fields["nextAttemptAt"] = "QUEUED", nil, ago(-time.Minute)
			fields["lastError"] = problem("http_503", "the model is overloaded")
		case i < 17:
			fields = map[string]any{"status": "QUEUED", "updatedAt": ago(4 * time.Hour)}
		case i == 17:
			fields["status"], fields["error"] = "FAILED", problem("effect_uncertain", "act charge")
			fields["openEffects"], fields["effects"] = 1, charge(time.Hour)
		case i < 58:
			fields["status"], fields["error"] = "FAILED", causes[i%3]
		}
		s.analysis(invoice(i), fields)
	}
	return s
}

// window sets the size of b's window.
func window(b *Tab, theme string, width, height int64) {
	b.T.Helper()
	b.Show(theme, width)
	Call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1,
	})
}

// each returns a script that lists what value returns of the elements e that selector finds.
func each(selector, value string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => %s)`, selector, value)
}

// The first screen of many analyses has what needs attention, and one line for each.
func TestConsole_FirstScreen(t *testing.T) {
	t.Parallel()
	s := crowded(t)
	b := live(s.open("/"))
	window(b, "light", 1280, 900)
	b.Is(each("#rows > [data-id]", "e.getBoundingClientRect().bottom <= innerHeight") + `.filter(Boolean).length >= 8`)
	b.Is(each("#rows > .group", "e.id") + `.join(' ') === 'group-attention group-waiting group-running group-others'`)
	b.Is(each("#rows > .cause", "e.dataset.code") + `.join(' ') === 'exit_1 http_400 timeout'`)
	b.Is(`document.querySelector('#rows > [data-id]').dataset.group === 'uncertain'`)
	lines := each("#rows > tr, #filter, #tally", "e.clientHeight > 36 && e.id")
	idsThatWrap := each("#rows .id a", "e.getClientRects().length !== 1 && e.id")
	b.want(lines+`.concat(`+idsThatWrap+`).filter(Boolean)`, "[]") // each is one line
	b.Is(`document.querySelector('.plot')?.checkVisibility() === false && !document.getElementById('backlog').open`)
	b.Click("backlog-title")
	b.Is(`document.querySelector('.plot .now').checkVisibility()`)
	b.Is(`document.querySelector('.axis b').innerText === 'now'`)
	s.update(invoice(5), map[string]any{"progress": map[string]any{"fraction": 0.99}})
	b.Is(row(invoice(5)) + `.innerText.includes('99 %') && document.getElementById('backlog').open`)

	// The times are this browser's, and UTC on hover.
	b.Is(`(() => {
		const e = document.querySelector('.axis time'), clock = { hour: '2-digit', minute: '2-digit' };
		return e.innerText === new Date(e.dateTime).toLocaleTimeString(undefined, clock) && e.title.endsWith(' UTC');
	})()`)
	window(b, "light", 400, 900)
	b.Go(s.url)
	b.Is(`document.querySelector('#rows > [data-group=uncertain]')?.getBoundingClientRect().bottom < innerHeight`)
	b.want(`document.getElementById('filter').checkVisibility()`, "false")
	b.CheckLayout("crowded 400")
	b.Go(s.url + "/?state=FAILED")
	b.Is(`document.getElementById('filter')?.checkVisibility()`)
}

// Selected analyses are changed together with only the keyboard. A poll replaces the rows, and not the selection.
func TestConsole_Selection(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write")
	for _, id := range []string{"a", "b", "c"} {
		s.analysis(id, map[string]any{"status": "FAILED", "attempts": 1, "error": problem("exit_1", "no")})
	}
	s.analysis("done", map[string]any{"status": "READY"})
	b := s.open("/")
	b.Focus()
	b.Show("light", 1280)
	live(b)
	selected := func(text string, disabled bool) {
		t.Helper()
		b.Is(fmt.Sprintf(`document.getElementById('selected').innerText === %q`, text))
		b.want(`document.getElementById('requeue-selected').disabled`, fmt.Sprint(disabled))
	}
	selected("None selected.", true)
	b.want(`document.querySelector('#rows [data-id=done] input')`, "null")
	tabTo(b, "pick-all")
	b.Press(" ")
	selected("3 selected:", false)
	most := func(n int) { b.Eval(fmt.Sprintf(`document.getElementById('selection').dataset.most = %d`, n)) }
	most(2)
	b.Press("  ")
	selected("3 selected: select at most 2.", true)
	most(200)
	b.Press("  ")
	selected("3 selected:", false)
	tabTo(b, "pick-"+strings.Trim(b.Eval(row("a")+`.dataset.key`), `"`))
	b.Press(" ")
	s.update("b", map[string]any{"error": problem("exit_2", "no")})
	b.Is(row("b") + `.innerText.includes('exit_2')`)
	b.want(each("#rows input", "e.checked && e.value")+`.filter(Boolean).sort()`, `["b","c"]`)
	selected("2 selected:", false)
	b.want(`document.getElementById('pick-all').indeterminate`, "true")

	b.Eval(`document.getElementById('filter').querySelector('button').focus(), 0`)
	tabTo(b, "requeue-selected")
	b.Press(kb.Enter)
	b.Is(`document.querySelectorAll('#picks li').length === 2`)
	s.update("b", map[string]any{"status": "READY"}) // it has changed since it was shown
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.Is(`document.getElementById('result')?.innerText.startsWith('1 requeued, 1 to look at')`)
	b.want(each("#untouched li", "e.dataset.id"), `["b"]`)
	s.wantStatus("a", "FAILED")
	s.wantStatus("b", "READY")
	s.wantStatus("c", "QUEUED")
}
