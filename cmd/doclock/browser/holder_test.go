package browser

import (
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/google/go-cmp/cmp"

	"taskguard/cmd/chromiumtest"
)

func TestTwoTabsWithTheSameOwnerIDAreTwoHolders(t *testing.T) {
	s := newSite(t, lasting)
	p := newProfile(t)
	take := `failure(locks.acquireProjectLock({ ...quick, ownerId: 'a'.repeat(64), retryLimit: 1 }).then((lease) => { globalThis.lease = lease; }))`
	first, second := p.load(s.room("another"), instrumented+withoutWebLocks), p.load(s.room("another"), instrumented+withoutWebLocks)
	if got, want := first.Eval(take), `"none"`; got != want {
		t.Errorf("the first tab fails with %s, want %s", got, want)
	}
	if got, want := second.Eval(take), `"fallback-conflict"`; got != want {
		t.Errorf("the second tab fails with %s, want %s", got, want)
	}
	second.Close()
	if got, want := first.Eval(`failure(locks.confirmProjectLock(lease))`), `"none"`; got != want {
		t.Errorf("with the second tab closed, confirming fails with %s, want %s", got, want)
	}
}

func TestAReleaseThatArrivesLateDoesNotFreeThePagesNextLease(t *testing.T) {
	for _, owner := range []string{`undefined`, `'somebody'`} {
		t.Run(owner, func(t *testing.T) {
			s := newSite(t, lasting)
			b := newProfile(t).load(s.room("another"), instrumented)
			if got, want := b.Eval(`(async () => {
				const ask = fetch;
				const late = [];
				globalThis.fetch = (url, init) => {
					if (init.method !== 'DELETE') return ask(url, init);
					late.push(() => ask(url, { method: 'DELETE', headers: init.headers })); // the client is told that it is lost
					return Promise.reject(new TypeError('injected'));
				};
				const first = await locks.acquireProjectLock({ ...quick, ownerId: `+owner+` });
				await failure(locks.releaseProjectLock(first));
				globalThis.fetch = ask;
				await late.shift()(); // one arrives, and frees the room
				const second = await locks.acquireProjectLock({ ...quick, ownerId: `+owner+` });
				const statuses = await Promise.all(late.map((send) => send().then(({ status }) => status)));
				return [statuses, await failure(locks.confirmProjectLock(second))];
			})()`), `[[403,403],"none"]`; got != want {
				t.Errorf("late releases were answered, and the next lease fails with: %s, want %s", got, want)
			}
			if !s.locked(t, "room") {
				t.Error("the room is free, want it held")
			}
		})
	}
}

func TestReleasingALeaseThatAnotherHasTakenIsStaleAndReadOnly(t *testing.T) {
	s := newSite(t, lasting)
	b := newProfile(t).load(s.room("another"), instrumented)
	b.Eval(`locks.acquireProjectLock(quick).then((lease) => { globalThis.lease = lease; })`)
	if broken, err := s.locks.Break(t.Context(), "room"); err != nil || !broken {
		t.Fatalf("an operator's unlock: %t, %v", broken, err)
	}
	hold(t, s.locks)
	if got, want := b.Eval(`failure(locks.releaseProjectLock(lease)).then((failed) => [failed, readonly])`), `["lease-stale",["lease-stale"]]`; got != want {
		t.Errorf("releasing it came to %s, want %s", got, want)
	}
	if got, want := b.Eval(`failure(locks.releaseProjectLock(lease, { force: true }))`), `"none"`; got != want {
		t.Errorf("forcing it fails with %s, want %s", got, want)
	}
	want := []string{
		"attempt web-lock retry=0", "acquired", "renew-scheduled", "release-requested",
		"attempt web-lock retry=0", "error web-lock lease-stale retry=0 retryable=false", "readonly-entered lease-stale",
		"release-requested force", "attempt web-lock retry=0", "released web-lock",
	}
	if diff := cmp.Diff(want, b.events()); diff != "" {
		t.Errorf("events, - want + got:\n%s", diff)
	}
	if !s.locked(t, "room") {
		t.Error("the other's lock is gone")
	}
}

// A server that starts with another secret knows no cookie of before.
func TestASessionThatTheServerDoesNotKnow(t *testing.T) {
	for _, c := range []struct{ name, before, script, says string }{
		{"is begun again by whoever takes the lock", ``,
			`failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 }))`, `["none",[],1]`},
		{"ends the lease with the next heartbeat", `locks.acquireProjectLock(quick).then((lease) => { globalThis.lease = lease; })`,
			`failure(locks.renewProjectLock(lease))`, `["lease-stale",["lease-stale"],1]`},
		{"ends the lease with its release, which is not tried again", `locks.acquireProjectLock(quick).then((lease) => { globalThis.lease = lease; })`,
			`failure(locks.releaseProjectLock(lease))`, `["release-failed",["release-failed"],1]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, lasting)
			b := newProfile(t).load(s.room("another"), instrumented)
			if c.before != "" {
				b.Eval(c.before)
			}
			chromiumtest.Call(b.Tab, network.SetCookie, network.SetCookieParams{Name: "doclock_session", Value: "v1.of.before", URL: s.url})
			if got := b.Eval(`(async () => {
				events.length = 0;
				const failed = await ` + c.script + `;
				return [failed, readonly, events.filter(({ type }) => type === 'lock:attempt').length];
			})()`); got != c.says {
				t.Errorf("failure, read-only, attempts: %s, want %s", got, c.says)
			}
		})
	}
}
