package browser

import (
	"encoding/json"
	"testing"
	"time"

	"taskguard/internal/emulatortest"
	"taskguard/worker"
)

func TestEachKindHasItsPageAndItsChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t, "--write")
	s.analysis("a", map[string]any{"status": "QUEUED"})
	s.stop()
	jobs := emulatortest.Jobs()
	text, err := json.Marshal([]worker.Kind{{}, {Name: "job", Collection: jobs.Collection, Fields: worker.Fields(jobs.Vocabulary)}, {Name: "reconciliation-of-the-invoices", Collection: "invoices"}})
	if err != nil {
		t.Fatal(err)
	}
	s.env["KINDS"] = string(text)
	s.start("0")
	s.Kind = jobs
	s.analysis("j", locked(time.Hour))
	b := s.open("/")
	b.Focus()
	b.Is(ids + ` === 'a'`)
	for theme, width := range map[string]int64{"light": 1280, "dark": 360} {
		b.Show(theme, width)
		b.CheckLayout("console kinds " + theme)
	}
	b.Click("kind-job")
	b.IsAfterLoad(`document.getElementById('kind-job').ariaCurrent === 'page' && ` + ids + ` === 'j'`)
	live(b)
	s.update("j", map[string]any{"progress": map[string]any{"fraction": 0.5, "message": "half", "at": ""}})
	b.Is(row("j") + `.innerText.includes('half')`)
	wantMarked(b)
	b.Eval(row("j") + `.querySelector('[data-action=unlock]').click()`)
	b.IsAfterLoad(`document.getElementById('confirm')?.dataset.action === 'unlock'`)
	b.Click("confirm-submit")
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Unlocked. A delivery is booked.' && location.pathname === '/kind/job/analysis'`)
	s.wantDelivery("j")
	if got := s.deliveries(); len(got) != 1 || got[0] != `/internal/tasks/job {"job_id":"j"}` {
		t.Errorf("delivered is %q", got)
	}
	b.Click("to-failures")
	b.IsAfterLoad(`location.pathname === '/kind/job/failures' && document.getElementById('to-failures').ariaCurrent === 'page'`)
	b.Click("kind-analysis")
	b.IsAfterLoad(ids + ` === 'a' && location.pathname === '/'`)
}
