package browser

import (
	"context"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"taskguard/cmd/chromiumtest"
)

// keptPages are what a page may be at when the browser keeps it for the Back
// button; begin is a script that leaves it there, with what is asked for in
// `taking`. `back` resolves when the page is shown again.
var keptPages = []struct {
	name, before string
	posts        int // until it is asked again
	begin        string
}{
	{"holding the lock", "", 1, `locks.acquireProjectLock(quick).then(({ leaseId }) => {
		globalThis.taking = back.then(() => failure(locks.renewProjectLock({ leaseId })));
	})`},
	{"holding the lock without Web Locks", withoutWebLocks, 1, `locks.acquireProjectLock(quick).then(({ leaseId }) => {
		globalThis.taking = back.then(() => failure(locks.renewProjectLock({ leaseId })));
	})`},
	{"asking for the Web Lock", "", 0, `(() => {
		const request = navigator.locks.request.bind(navigator.locks);
		navigator.locks.request = (...of) => back.then(() => request(...of));
		globalThis.taking = failure(locks.acquireProjectLock(quick)).finally(() => { delete navigator.locks.request; });
	})()`},
	{"asking the server", "", 1, `new Promise((asked) => {
		const ask = fetch;
		globalThis.fetch = (url, init) => {
			if (init.method !== 'POST') return ask(url, init);
			globalThis.fetch = ask;
			asked();
			return back.then(() => ask(url, init)); // after the page has given up what it may have got
		};
		globalThis.taking = failure(locks.acquireProjectLock(quick));
	})`},
}

func TestAPageThatIsKeptForTheBackButtonLeavesNothingHeldAndComesBackReadOnly(t *testing.T) {
	s := newSite(t, lasting)
	p := newProfile(t)
	for _, c := range keptPages {
		t.Run(c.name, func(t *testing.T) {
			b := p.in(t).load(s.url+"/page.css", instrumented+c.before) // no socket of its own
			b.Eval(`void (globalThis.back = new Promise((shown) => {
				addEventListener('pageshow', ({ persisted }) => { globalThis.kept = persisted; shown(); });
			}))`)
			before := s.requests("POST")
			b.Eval(c.begin)
			b.Do(chromedp.Navigate(s.url + "/health/live"))
			b.goBack(`globalThis.kept === true`)
			if got, want := b.Eval(`taking.then((failed) => [failed, readonly, kept])`), `["lease-stale",["lease-stale"],true]`; got != want {
				t.Errorf("back on the page: %s, want %s", got, want)
			}
			if got, want := b.Eval(`navigator.locks?.query().then(({ held }) => held.length) ?? 0`), "0"; got != want {
				t.Errorf("%s Web Locks are held, want %s", got, want)
			}
			s.free(t, "room")
			if got := s.requests("POST") - before; got != c.posts {
				t.Errorf("the server was asked for the lock %d times, want %d", got, c.posts)
			}
			if got, want := b.Eval(`failure(locks.withProjectLock(() => {}, quick))`), `"none"`; got != want {
				t.Errorf("the user asks again and fails with %s, want %s", got, want)
			}
			b.Close()
		})
	}
}

// goBack goes back to the page before, until condition holds there. A browser that
// has kept it loads nothing, so no event of loading can be waited for.
func (b *tab) goBack(condition string) {
	b.T.Helper()
	h := chromiumtest.Call(b.Tab, page.GetNavigationHistory, cdp.Empty{})
	chromiumtest.Call(b.Tab, page.NavigateToHistoryEntry, page.NavigateToHistoryEntryParams{EntryID: h.Entries[h.CurrentIndex-1].ID})
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ctx, done := context.WithTimeout(b.Ctx, time.Second)
		// It fails while one page takes the other's place.
		holds, err := chromedp.Run(ctx, chromedp.Evaluate[bool](condition))
		done()
		if err == nil && holds {
			return
		}
		if time.Now().After(deadline) {
			b.T.Fatalf("the page does not come back so that %s: %v", condition, err)
		}
	}
}
