package browser

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"

	"taskguard/cmd/chromiumtest"
)

// holding is a script that takes the room for the test's TTL, keeps the lease as
// `lease`, and writes to `written` as long as it may.
const holding = `(async () => {
	globalThis.written = 0;
	globalThis.lease = await locks.acquireProjectLock({ ...quick, ttlMs: 3000, onReadonly: ({ reason }) => {
		readonly.push(reason);
		clearInterval(writing);
		globalThis.writtenAtLoss = written;
	} });
	const writing = setInterval(() => { written++; }, 20);
})()`

func TestOfflineForLongerThanTheTTLIsReadOnlyExactlyOnceAndWritesNothing(t *testing.T) {
	s := newSite(t, ttl)
	b := newProfile(t).load(s.room("another"), instrumented)
	b.Eval(holding)
	b.Is(`events.some(({ type }) => type === 'lock:renewed') && written > 0`)
	b.offline(true)
	b.Is(`readonly.length`)
	sent := s.requests("PUT")
	b.offline(false)
	// As long again: nothing comes back to life.
	time.Sleep(ttl)
	if got, want := b.Eval(`[readonly.length, written === writtenAtLoss, events.filter(({ type }) => type === 'lock:readonly-entered').length]`), `[1,true,1]`; got != want {
		t.Errorf("times that onReadonly was called, nothing written since, times that lock:readonly-entered came: %s, want %s", got, want)
	}
	if got := s.requests("PUT"); got != sent {
		t.Errorf("%d heartbeats after the end, want none", got-sent)
	}
	if got, want := b.Eval(`failure(locks.confirmProjectLock(lease))`), b.Eval(`readonly[0]`); got != want {
		t.Errorf("confirming came to %s, want %s", got, want)
	}
	if got, want := b.Eval(`[clocks.started - clocks.ended, navigator.locks.query().then(({ held }) => held.length)][0]`), "0"; got != want {
		t.Errorf("%s Workers are left, want %s", got, want)
	}
	s.free(t, "room")
}

func TestTheServersTTLCountsWhereItIsTheShorter(t *testing.T) {
	s := newSite(t, ttl)
	b := newProfile(t).load(s.room("another"), instrumented)
	b.Eval(`locks.acquireProjectLock(quick).then((lease) => { globalThis.lease = lease; })`)
	if got, want := b.Eval(`lease.ttlMs`), "3000"; got != want {
		t.Errorf("the lease is trusted for %s ms, want %s", got, want)
	}
	b.Is(`events.filter(({ type }) => type === 'lock:renewed').length >= 3`) // more than one TTL
	if got, want := b.Eval(`readonly`), "[]"; got != want {
		t.Errorf("onReadonly was called with %s, want %s", got, want)
	}
}

func TestALeaseIsTrustedForNineTenthsOfTheServersTTLAtMost(t *testing.T) {
	for _, c := range []struct {
		server  time.Duration
		options string
		trusted time.Duration
	}{
		{0, ``, 25 * time.Second}, // of 30
		{0, `preferredStrategy: 'file-lock'`, 27 * time.Second},
		{25 * time.Second, ``, 22500 * time.Millisecond},
		{10 * time.Second, `ttlMs: 60000`, 9 * time.Second},
	} {
		t.Run(fmt.Sprint(c.server, " ", c.options), func(t *testing.T) {
			s := newSite(t, c.server)
			b := newProfile(t).load(s.room("another"), instrumented)
			got, err := strconv.Atoi(b.Eval(`(async () => {
				const lease = await locks.acquireProjectLock({ ...quick, ` + c.options + ` });
				return Date.parse(lease.expiresAt) - Date.parse(lease.acquiredAt);
			})()`))
			if err != nil {
				t.Fatal(err)
			}
			// Less by how long the answer took.
			if span := time.Duration(got) * time.Millisecond; span > c.trusted || span < c.trusted/2 {
				t.Errorf("from the acquisition it is trusted for %v, want %v or little less", span, c.trusted)
			}
		})
	}
}

func TestAHiddenTabKeepsItsLock(t *testing.T) {
	s := newSite(t, ttl)
	p := newProfile(t)
	// The page's own timers do not run at all: a browser may slow them down to one a minute.
	b := p.load(s.room("another"), instrumented+withoutTimers)
	b.Eval(`locks.acquireProjectLock({ ...quick, ttlMs: 3000 }).then((lease) => { globalThis.lease = lease; })`)
	b.hide()
	b.Is(`events.filter(({ type }) => type === 'lock:renewed').length >= 6`) // more than two TTLs
	if got, want := b.Eval(`[readonly.length, document.visibilityState]`), `[0,"hidden"]`; got != want {
		t.Errorf("times read-only, visibility: %s, want %s", got, want)
	}
	if got, want := b.Eval(`locks.confirmProjectLock(lease).then(({ validForMs }) => validForMs > 0)`), "true"; got != want {
		t.Errorf("the lock is confirmed: %s, want %s", got, want)
	}
}

func TestATabFrozenForLongerThanTheTTLIsReadOnlyBeforeItCanWrite(t *testing.T) {
	s := newSite(t, ttl)
	p := newProfile(t)
	b := p.load(s.room("another"), instrumented+withoutWebLocks)
	b.Eval(holding)
	b.hide()
	b.Eval(`(() => {
		const ask = fetch;
		document.addEventListener('resume', () => {
			globalThis.fetch = (url, init) => { globalThis.asked ||= url.includes('/confirm'); return ask(url, init); };
			globalThis.resumed = locks.confirmProjectLock(lease).then(() => 'may write', (error) => error.code);
		});
	})()`)
	b.lifecycle(page.SetWebLifecycleStateStateFrozen)
	s.free(t, "room")
	b.lifecycle(page.SetWebLifecycleStateStateActive)
	b.Is(`readonly.length`)
	if got, want := b.Eval(`resumed.then((answer) => [answer, globalThis.asked ?? false])`), `["lease-stale",false]`; got != want {
		t.Errorf("the first that a resumed page asks is answered, by the server or not: %s, want %s", got, want)
	}
	if got, want := b.Eval(`readonly`), `["lease-stale"]`; got != want {
		t.Errorf("onReadonly was called with %s, want %s", got, want)
	}
}

func TestALockThatTheServerNoLongerKnowsIsReadOnlyAtTheNextHeartbeat(t *testing.T) {
	s := newSite(t, 0)
	b := newProfile(t).load(s.room("another"), instrumented)
	b.Eval(`locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 2000 })`)
	if broken, err := s.locks.Break(t.Context(), "room"); err != nil || !broken {
		t.Fatalf("an operator's unlock: %t, %v", broken, err)
	}
	b.Is(`readonly.length`)
	want := []string{
		"attempt web-lock retry=0", "acquired", "renew-scheduled",
		"attempt web-lock retry=0", "error web-lock lease-stale retry=0 retryable=false", "readonly-entered lease-stale",
	}
	if diff := cmp.Diff(want, b.events()); diff != "" {
		t.Errorf("events, - want + got:\n%s", diff)
	}
}

func TestASaveThatTheServerDoesNotConfirmIsNotMade(t *testing.T) {
	s := newSite(t, 0)
	b := newProfile(t).load(s.room("room"), instrumented)
	b.Click("edit")
	b.shows("mine")
	b.Eval(`document.getElementById('text').value = 'first'`)
	b.Click("save")
	b.Is(`document.getElementById('saved').textContent.startsWith('Saved with token ')`)
	// The renewal that the page makes when it is told of the unlock must not find out first.
	b.Eval(`(() => {
		const ask = fetch;
		globalThis.fetch = (url, init) => (init?.method === 'PUT' ? new Promise(() => {}) : ask(url, init));
	})()`)
	if broken, err := s.locks.Break(t.Context(), "room"); err != nil || !broken {
		t.Fatalf("an operator's unlock: %t, %v", broken, err)
	}
	b.Eval(`document.getElementById('text').value = 'second'`)
	b.Click("save")
	b.Is(`document.getElementById('saved').textContent.startsWith('Not saved')`)
	if got, want := b.Eval(`localStorage.getItem('text of room')`), `"first"`; got != want {
		t.Errorf("kept is %s, want %s", got, want)
	}
	if got, want := b.Eval(`[document.getElementById('banner').hidden, document.getElementById('text').readOnly]`), `[false,true]`; got != want {
		t.Errorf("the banner is hidden, the text is read-only: %s, want %s", got, want)
	}
}

// emulateNetworkConditions is left out of the Go package because a newer command
// exists, whose parameters differ from one release of Chromium to the next.
var emulateNetworkConditions = cdp.Command[networkConditions, cdp.Empty]{Method: "Network.emulateNetworkConditions"}

type networkConditions struct {
	Offline  bool    `json:"offline"`
	Latency  float64 `json:"latency"`
	Download float64 `json:"downloadThroughput"`
	Upload   float64 `json:"uploadThroughput"`
}

// offline takes the network from the tab, or gives it back.
func (b *tab) offline(is bool) {
	b.T.Helper()
	chromiumtest.Call(b.Tab, emulateNetworkConditions, networkConditions{Offline: is, Download: -1, Upload: -1})
}

// hide puts another tab in front.
func (b *tab) hide() {
	b.T.Helper()
	ctx, closed := chromedp.NewContext(b.Ctx, chromedp.WithNewWindow(false))
	b.T.Cleanup(closed)
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		b.T.Fatal(err)
	}
	b.Is(`document.visibilityState === 'hidden'`)
}

func (b *tab) lifecycle(state page.SetWebLifecycleStateState) {
	b.T.Helper()
	chromiumtest.Call(b.Tab, page.SetWebLifecycleState, page.SetWebLifecycleStateParams{State: state})
}
