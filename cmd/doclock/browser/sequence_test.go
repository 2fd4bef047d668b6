package browser

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskguard/lease/documentlock"
)

// sequences are what happens (P7, P13), for what is done: script runs in a tab
// with the room free, or held by another.
var sequences = []struct {
	name     string
	before   string // script before the page's own
	held     bool   // by another
	script   string
	says     string // what script comes to
	readonly string // the reasons that onReadonly was called with
	events   []string
}{
	{
		name: "acquired, renewed, released",
		script: `(async () => {
			const heartbeat = next('lock:renewed');
			const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 2000 });
			await heartbeat;
			await locks.releaseProjectLock(lease);
			return lease.strategy + ' ' + lease.viaFallback;
		})()`,
		says: `"web-lock false"`,
		events: []string{
			"attempt web-lock retry=0", "acquired", "renew-scheduled",
			"attempt web-lock retry=0", "renewed retry=0", "renew-scheduled",
			"release-requested", "attempt web-lock retry=0", "released web-lock",
		},
	},
	{
		name:   "Web Locks missing: the server's lease alone, at once",
		before: withoutWebLocks,
		script: `locks.withProjectLock((lease) => lease.strategy + ' ' + lease.viaFallback, quick)`,
		says:   `"file-lock true"`,
		events: []string{
			"attempt web-lock retry=0", "error web-lock web-lock-unsupported retry=0 retryable=false",
			"waiting file-lock retry=0 wait=0", "fallback-engaged file-lock web-lock-unsupported",
			"attempt file-lock retry=0", "acquired", "renew-scheduled",
			"release-requested", "attempt file-lock retry=0", "released file-lock",
		},
	},
	{
		name:     "Web Locks missing and another holds it: read-only for fallback-conflict",
		before:   withoutWebLocks,
		held:     true,
		script:   `failure(locks.acquireProjectLock(quick))`,
		says:     `"fallback-conflict"`,
		readonly: `["fallback-conflict"]`,
		events: []string{
			"attempt web-lock retry=0", "error web-lock web-lock-unsupported retry=0 retryable=false",
			"waiting file-lock retry=0 wait=0", "fallback-engaged file-lock web-lock-unsupported",
			"attempt file-lock retry=0", "warning fallback-degraded", "error file-lock fallback-conflict retry=0 retryable=true",
			"waiting file-lock retry=0 wait=10",
			"attempt file-lock retry=1", "warning fallback-degraded", "error file-lock fallback-conflict retry=1 retryable=true",
			"waiting file-lock retry=1 wait=20",
			"attempt file-lock retry=2", "warning fallback-degraded", "error file-lock fallback-conflict retry=2 retryable=false",
			"readonly-entered fallback-conflict",
		},
	},
	{
		name:     "held by another: denied, and never around it by the fallback",
		held:     true,
		script:   `failure(locks.acquireProjectLock(quick))`,
		says:     `"acquire-denied"`,
		readonly: `["acquire-denied"]`,
		events: []string{
			"attempt web-lock retry=0", "error web-lock acquire-denied retry=0 retryable=true", "waiting web-lock retry=0 wait=10",
			"attempt web-lock retry=1", "error web-lock acquire-denied retry=1 retryable=true", "waiting web-lock retry=1 wait=20",
			"attempt web-lock retry=2", "error web-lock acquire-denied retry=2 retryable=false", "readonly-entered acquire-denied",
		},
	},
	{
		name:     "the server out of reach: three attempts, 500 ms and 1 s apart",
		script:   `(fail('POST', 3), failure(locks.acquireProjectLock({ ...quick, backoffMs: undefined })))`,
		says:     `"acquire-timeout"`,
		readonly: `["acquire-timeout"]`,
		events: []string{
			"attempt web-lock retry=0", "error web-lock acquire-timeout retry=0 retryable=true", "waiting web-lock retry=0 wait=500",
			"attempt web-lock retry=1", "error web-lock acquire-timeout retry=1 retryable=true", "waiting web-lock retry=1 wait=1000",
			"attempt web-lock retry=2", "error web-lock acquire-timeout retry=2 retryable=false", "readonly-entered acquire-timeout",
		},
	},
	{
		name: "a renewal fails twice, then succeeds",
		script: `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			fail('PUT', 2);
			const renewed = await locks.renewProjectLock(lease);
			await locks.releaseProjectLock(renewed);
			return renewed.renewAttempt;
		})()`,
		says: `2`,
		events: []string{
			"attempt web-lock retry=0", "acquired", "renew-scheduled",
			"attempt web-lock retry=0", "error web-lock renew-failed retry=0 retryable=true", "waiting web-lock retry=0 wait=10",
			"attempt web-lock retry=1", "error web-lock renew-failed retry=1 retryable=true", "waiting web-lock retry=1 wait=20",
			"attempt web-lock retry=2", "renewed retry=2", "renew-scheduled",
			"release-requested", "attempt web-lock retry=0", "released web-lock",
		},
	},
	{
		name: "two heartbeats in a row fail: read-only",
		script: `(async () => {
			fail('PUT', 6);
			const over = next('lock:readonly-entered');
			const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 1200, retryLimit: 2 });
			await over;
			return failure(locks.renewProjectLock(lease));
		})()`,
		says:     `"renew-failed"`,
		readonly: `["renew-failed"]`,
		events: []string{
			"attempt web-lock retry=0", "acquired", "renew-scheduled",
			"attempt web-lock retry=0", "error web-lock renew-failed retry=0 retryable=true", "waiting web-lock retry=0 wait=10",
			"attempt web-lock retry=1", "error web-lock renew-failed retry=1 retryable=true", "renew-scheduled",
			"attempt web-lock retry=0", "error web-lock renew-failed retry=0 retryable=true", "waiting web-lock retry=0 wait=10",
			"attempt web-lock retry=1", "error web-lock renew-failed retry=1 retryable=true", "readonly-entered renew-failed",
		},
	},
	{
		name: "a release fails, is tried again, and succeeds",
		script: `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			fail('DELETE', 1);
			await locks.releaseProjectLock(lease);
		})()`,
		events: []string{
			"attempt web-lock retry=0", "acquired", "renew-scheduled", "release-requested",
			"attempt web-lock retry=0", "release-failed retry=0", "error web-lock release-failed retry=0 retryable=true",
			"waiting web-lock retry=0 wait=10",
			"attempt web-lock retry=1", "released web-lock",
		},
	},
	{
		name: "a release whose answer is lost, and is tried again",
		script: `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			const ask = fetch;
			globalThis.fetch = async (...of) => {
				globalThis.fetch = async (...of) => {
					const answer = await ask(...of);
					return new Response('{"error":"not_locked_by_user"}', { status: 403 }); // another has taken it since
				};
				await ask(...of);
				throw new TypeError('injected');
			};
			await locks.releaseProjectLock(lease);
		})()`,
		events: []string{
			"attempt web-lock retry=0", "acquired", "renew-scheduled", "release-requested",
			"attempt web-lock retry=0", "release-failed retry=0", "error web-lock release-failed retry=0 retryable=true",
			"waiting web-lock retry=0 wait=10",
			"attempt web-lock retry=1", "released web-lock",
		},
	},
	{
		name: "renewed by who hears of the lock",
		script: `(async () => {
			let renewing;
			locks.subscribeLockEvents((event) => {
				if (event.type === 'lock:acquired') renewing = failure(locks.renewProjectLock(event.lease));
			});
			unsubscribe(); // to hear everything after the listener that renews
			locks.subscribeLockEvents((event) => events.push(event));
			const lease = await locks.acquireProjectLock(quick);
			const failed = await renewing;
			await locks.releaseProjectLock(lease);
			return failed;
		})()`,
		says: `"none"`,
		events: []string{
			"attempt web-lock retry=0", "acquired", "renew-scheduled",
			"attempt web-lock retry=0", "renewed retry=0", "renew-scheduled",
			"release-requested", "attempt web-lock retry=0", "released web-lock",
		},
	},
	{
		name: "a release fails three times: read-only, until it is forced",
		script: `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			fail('DELETE', 4);
			const failures = [await failure(locks.releaseProjectLock(lease))];
			await locks.releaseProjectLock(lease); // nothing: it is over
			failures.push(await failure(locks.releaseProjectLock(lease, { force: true })));
			await locks.releaseProjectLock(lease, { force: true });
			return failures;
		})()`,
		says:     `["release-failed","release-failed"]`,
		readonly: `["release-failed"]`,
		events: []string{
			"attempt web-lock retry=0", "acquired", "renew-scheduled", "release-requested",
			"attempt web-lock retry=0", "release-failed retry=0", "error web-lock release-failed retry=0 retryable=true",
			"waiting web-lock retry=0 wait=10",
			"attempt web-lock retry=1", "release-failed retry=1", "error web-lock release-failed retry=1 retryable=true",
			"waiting web-lock retry=1 wait=20",
			"attempt web-lock retry=2", "release-failed retry=2", "error web-lock release-failed retry=2 retryable=true",
			"readonly-entered release-failed",
			"release-requested force",
			"attempt web-lock retry=0", "release-failed retry=0 force", "error web-lock release-failed retry=0 retryable=false",
			"release-requested force", "attempt web-lock retry=0", "released web-lock",
		},
	},
}

func TestEachSequenceOfEventsIsExactAndFreesWhatItTook(t *testing.T) {
	p := newProfile(t)
	for _, c := range sequences {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, lasting)
			if c.held {
				hold(t, s.locks)
			}
			b := p.in(t).load(s.room("another"), instrumented+c.before)
			if got, want := b.Eval(c.script), c.says; got != want {
				t.Errorf("the script came to %s, want %s", got, want)
			}
			if diff := cmp.Diff(c.events, b.events()); diff != "" {
				t.Errorf("events, - want + got:\n%s", diff)
			}
			want := c.readonly
			if want == "" {
				want = "[]"
			}
			if got := b.Eval(`readonly`); got != want {
				t.Errorf("onReadonly was called with %s, want %s", got, want)
			}
			if got, want := b.Eval(`clocks.started === clocks.ended`), "true"; got != want {
				t.Errorf("the Workers that were started have ended: %s, want %s (%s)", got, want, b.Eval(`clocks`))
			}
			if got, want := b.Eval(`navigator.locks?.query().then(({ held }) => held.length) ?? 0`), "0"; got != want {
				t.Errorf("%s Web Locks are held, want %s", got, want)
			}
			if got := s.locked(t, "room"); got != c.held {
				t.Errorf("the server's room is locked: %t, want %t", got, c.held)
			}
			b.Close()
		})
	}
}

// hold makes another hold the room.
func hold(t *testing.T, l *documentlock.Locks) {
	t.Helper()
	if _, err := l.Acquire(t.Context(), "room", "another"); err != nil {
		t.Fatal(err)
	}
}

// ttl is short enough to wait for, and long enough for a busy machine's heartbeats.
const ttl = 3 * time.Second
