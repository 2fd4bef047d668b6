package browser

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
)

// writing is a script that takes the room for the short TTL as `lease`, and writes
// to `written` until it is read-only.
const writing = `(async () => {
	globalThis.written = 0;
	globalThis.lease = await locks.acquireProjectLock({ ...quick, ttlMs: 8000, onReadonly: ({ reason }) => {
		readonly.push(reason);
		clearInterval(writing);
		globalThis.writtenAtLoss = written;
	} });
	const writing = setInterval(() => { written++; }, 20);
})()`

const acquiring = `take().then((lease) => { globalThis.lease = lease; })`

// A lost lock is read-only once, and writes nothing.
func TestLocksJS_Lost(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(s *lockSite, b *Tab){
		"offline for longer than the TTL": offlineBeyondTheTTL,
		"frozen for longer than the TTL":  frozenBeyondTheTTL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newLockSite(t, short)
			run(s, NewProfile(t).load(s))
		})
	}
	t.Run("by the server's answer", func(t *testing.T) {
		t.Parallel()
		s := newLockSite(t, long)
		b := NewProfile(t).load(s)
		for _, run := range []func(s *lockSite, b *Tab){unlockedByAnOperator, releasedAfterATakeOver, unknownSession} {
			b.Eval(`reset()`)
			run(s, b)
		}
	})
}

func offlineBeyondTheTTL(s *lockSite, b *Tab) {
	b.Eval(writing)
	b.Is(`count('lock:renewed') > 0 && written > 0`)
	b.Eval(`void (globalThis.fetch = () => Promise.reject(new TypeError('offline')))`)
	b.Is(`readonly.length`)
	sent := s.count("PUT")
	b.Eval(`void (globalThis.fetch = real)`)
	time.Sleep(short / 2) // longer than a heartbeat's interval
	b.want(`[readonly.length, written === writtenAtLoss, count('lock:readonly-entered')]`, `[1,true,1]`)
	if got := s.count("PUT"); got != sent {
		b.T.Errorf("%d heartbeats after the end, want none", got-sent)
	}
	b.want(`confirms(lease)`, b.Eval(`readonly[0]`))
	b.want(`clocks.started - clocks.ended`, "0")
	s.free(b.T, "room")
}

func frozenBeyondTheTTL(s *lockSite, b *Tab) {
	b.Eval(writing)
	b.hide()
	b.Eval(`(() => {
		document.addEventListener('resume', () => {
			globalThis.asked = false;
			globalThis.fetch = (url, init) => { asked ||= url.includes('/confirm'); return real(url, init); };
			globalThis.resumed = confirms(lease);
		});
	})()`)
	b.lifecycle(page.SetWebLifecycleStateStateFrozen)
	s.free(b.T, "room")
	b.lifecycle(page.SetWebLifecycleStateStateActive)
	b.Is(`readonly.length`)
	b.want(`resumed.then((failed) => [failed, asked, readonly])`, `["lease-stale",false,["lease-stale"]]`)
}

// unlockedByAnOperator: the next heartbeat fails, as the server has removed the lock.
func unlockedByAnOperator(s *lockSite, b *Tab) {
	b.Eval(`take({ heartbeatIntervalMs: 2000 })`)
	s.unlock(b.T, "room")
	b.Is(`readonly.length`)
	b.wantEvents(taken, "attempt web-lock retry=0; error web-lock lease-stale retry=0; readonly-entered lease-stale")
}

func releasedAfterATakeOver(s *lockSite, b *Tab) {
	b.Eval(acquiring)
	s.unlock(b.T, "room")
	s.hold(b.T, "room")
	b.want(`releases(lease).then((failed) => [failed, readonly])`, `["lease-stale",["lease-stale"]]`)
	b.want(`releases(lease, { force: true })`, `"none"`)
	b.wantEvents(taken,
		"release-requested; attempt web-lock retry=0; error web-lock lease-stale retry=0; readonly-entered lease-stale",
		"release-requested force; attempt web-lock retry=0; released web-lock")
	if state, err := s.locks.Get(b.T.Context(), "room", "another"); err != nil || !state.Mine {
		b.T.Errorf("the other's lock was released: %+v, %v", state, err)
	}
	s.unlock(b.T, "room")
}

// unknownSession: a server that starts with another secret rejects earlier cookies.
func unknownSession(s *lockSite, b *Tab) {
	for _, c := range []struct{ before, script, want string }{
		// An acquisition begins a new session.
		{`0`, `take({ retryLimit: 1 }).then((lease) => locks.releaseProjectLock(lease))`, `["none",[],2]`},
		{acquiring, `locks.renewProjectLock(lease)`, `["lease-stale",["lease-stale"],1]`},
		// A release is not tried again.
		{acquiring, `locks.releaseProjectLock(lease)`, `["release-failed",["release-failed"],1]`},
	} {
		b.Eval(`reset()`)
		b.Eval(c.before)
		Call(b, network.SetCookie, network.SetCookieParams{Name: "doclock_session", Value: "v1.of.before", URL: s.url})
		b.want(`(async () => {
			events.length = 0;
			return [await failure(`+c.script+`), readonly, count('lock:attempt')];
		})()`, c.want)
		if c.before == acquiring {
			s.unlock(b.T, "room")
		}
	}
}

// A hidden tab keeps its lock. The page's own timers do not run, as a browser may slow them down to one a minute.
func TestLocksJS_Hidden(t *testing.T) {
	t.Parallel()
	s := newLockSite(t, 12*time.Second)
	b := NewProfile(t).load(s, withoutTimers)
	b.Eval(acquiring)
	b.Eval(`take({ resource: 'other' }).then((other) => locks.releaseProjectLock(other))`)
	b.hide()
	b.Is(`count('lock:renewed') >= 3`) // more than one TTL
	b.want(`[lease.ttlMs, readonly.length, document.visibilityState]`, `[12000,0,"hidden"]`)
	b.want(`locks.confirmProjectLock(lease).then(({ validForMs }) => validForMs > 0)`, "true")
}

// hide shows another tab in front.
func (b *Tab) hide() {
	b.T.Helper()
	b.OpenBeside("about:blank")
	b.Is(`document.visibilityState === 'hidden'`)
}

func (b *Tab) lifecycle(state page.SetWebLifecycleStateState) {
	b.T.Helper()
	Call(b, page.SetWebLifecycleState, page.SetWebLifecycleStateParams{State: state})
}
