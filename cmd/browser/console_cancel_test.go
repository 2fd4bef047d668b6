package browser

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"taskguard/internal/delivery"
	"taskguard/lease"
	"taskguard/orchestrator"
	"taskguard/repo"
)

// run delivers the analysis id to a worker, whose analyzer reports its first page, waits for
// the end of its context, and then still reports and returns a result. The outcome is sent.
func (s *site) run(id string) <-chan delivery.Outcome {
	s.t.Helper()
	a, err := repo.Open(s.t.Context(), s.Project, repo.Options{Policy: lease.Policy{TTL: 2 * time.Minute, Heartbeat: 300 * time.Millisecond}}, s.Client(s.t)...)
	if err != nil {
		s.t.Fatal(err)
	}
	guard := &delivery.Guard{
		Locks: a, Instance: "w/1", RunTimeout: time.Hour, CheckpointInterval: time.Second, Log: slog.New(slog.DiscardHandler),
		Analyzer: orchestrator.AnalyzerFunc(func(ctx context.Context, job orchestrator.Job) (orchestrator.Result, error) {
			if err := job.Checkpoint(ctx, 1); err != nil {
				return nil, err
			}
			job.Report(0.25, "page <1> of 4")
			<-ctx.Done()
			job.Report(1, "too late")
			return "too late", nil
		}),
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(s.t.Context()))
	outcome := make(chan delivery.Outcome, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		outcome <- guard.Deliver(ctx, delivery.Delivery{AnalysisID: id})
	}()
	s.t.Cleanup(func() { cancel(delivery.ErrStopping); <-ended; _ = a.Close() })
	return outcome
}

func TestALiveRunIsCancelledAfterAConfirmation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.analysis("a", map[string]any{"status": "QUEUED"})
	outcome := s.run("a")
	// Without --write there is nothing to press, and the address refuses.
	b := s.open("/analysis?id=a")
	b.Is(`document.getElementById('fact-progress')?.innerText.includes('25 %')`)
	if got := b.Eval(`document.querySelectorAll('[data-action]').length`); got != "0" {
		t.Errorf("a page without changes has %s of them", got)
	}
	b.Go(s.url + "/cancel?id=a")
	b.IsAfterLoad(`document.getElementById('problem')?.dataset.code === '403'`)
	s.stop()
	s.flags = []string{"--write"}
	s.start("0")

	list := s.open("/")
	live(list)
	list.Is(row("a") + `?.innerText.includes('25 %') && ` + row("a") + `.innerText.includes('page <1> of 4') && ` + row("a") + `.querySelector('progress').value === 25`)
	b = s.open("/analysis?id=a")
	b.Focus()
	b.Show("dark", 360)
	live(b)
	b.Is(`document.getElementById('fact-checkpoint').innerText.startsWith('yes') && document.querySelector('#timeline li').dataset.outcome === 'running'`)
	tabTo(b, strings.Trim(b.Eval(`document.querySelector('[data-action="cancel"]').id`), `"`))
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('confirm')?.dataset.action === 'cancel'`)
	b.CheckLayout("console confirm cancel")
	select {
	case o := <-outcome:
		t.Fatalf("the run ended before it was confirmed: %v", o.Case)
	default:
	}
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Cancelled. It is finished and needs no delivery.'`)
	if o := <-outcome; o.Case != delivery.LockLost {
		t.Errorf("the run ended with %v, %v", o.Case, o.Err)
	}
	b.Is(`document.getElementById('fact-state').innerText === 'FAILED' && document.getElementById('fact-error').innerText.includes('cancelled by ')`)
	b.Is(`document.querySelector('#timeline li').dataset.outcome === 'cancelled'`)
	list.Is(row("a") + `.dataset.state === 'FAILED' && !` + row("a") + `.querySelector('progress')`)
	fields := s.Fields(t, "a")
	if fields["status"] != "FAILED" || fields["result"] != nil || fields["lockOwner"] != nil || fields["checkpoint"] != int64(1) || fields["lockToken"] != int64(2) {
		t.Errorf("the document has %v", fields)
	}
	if got := fields["progress"].(map[string]any)["message"]; got != "page <1> of 4" {
		t.Errorf("after its cancellation the run wrote %q", got)
	}
	if got := s.deliveries(); len(got) != 0 {
		t.Errorf("delivered are %q", got)
	}
	// A requeue from the beginning deletes the checkpoint.
	b.Go(s.url + "/requeue?id=a")
	b.IsAfterLoad(`document.getElementById('fresh')`)
	tabTo(b, "fresh")
	b.Press(" ")
	tabTo(b, "confirm-submit")
	b.Press(kb.Enter)
	b.IsAfterLoad(`document.getElementById('notice')?.innerText === 'Requeued. A delivery is booked.'`)
	if fields := s.Fields(t, "a"); fields["status"] != "QUEUED" || fields["checkpoint"] != nil || fields["progress"] != nil {
		t.Errorf("the document has %v", fields)
	}
	s.wantDelivery("a")
}
