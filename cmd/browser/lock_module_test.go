package browser

import (
	_ "embed" // scripts
	"fmt"
	"strings"
	"testing"
)

// Events that most sequences begin and end with.
const (
	taken    = "attempt web-lock retry=0; acquired; renew-scheduled"
	released = "release-requested; attempt web-lock retry=0; released web-lock"
	noLocks  = "attempt web-lock retry=0; error web-lock web-lock-unsupported retry=0; " +
		"waiting file-lock retry=0 wait=0; fallback-engaged file-lock web-lock-unsupported"
)

// tries returns the events of attempts that fail with code, each followed by a wait of so many ms.
func tries(code string, waits ...int) string {
	var all []string
	for i, ms := range waits {
		all = append(all, fmt.Sprintf("attempt web-lock retry=%[2]d; error web-lock %[1]s retry=%[2]d retryable; "+
			"waiting web-lock retry=%[2]d wait=%[3]d", code, i, ms))
	}
	return strings.Join(all, "; ")
}

// renewOnce is a script that takes the room and releases it after a heartbeat.
const renewOnce = `locks.withProjectLock(async (lease) => {
	await next('lock:renewed');
	return lease.strategy + ' ' + lease.viaFallback;
}, { ...quick, heartbeatIntervalMs: 1200 })`

// moduleCase runs a script that uses the module.
type moduleCase struct {
	name     string
	before   string // script before the page's own
	held     bool   // another holds the room
	script   string
	want     string   // what script returns
	readonly string   // the reasons of onReadonly; if events are compared
	events   []string // nil: not compared
}

// run runs c in b.
func (c *moduleCase) run(t *testing.T, s *lockSite, b *Tab) {
	if c.held {
		s.hold(t, "room")
	}
	b.Eval(`reset()`)
	b.want(c.script, c.want)
	if c.events != nil {
		b.wantEvents(c.events...)
		b.want(`readonly`, "["+c.readonly+"]")
	}
	if c.held {
		s.unlock(t, "room")
	}
	s.wantFree(b)
}

// Each sequence of events is exact, and frees what it took. It is not parallel to other tests: with quick heartbeats
// the module waits half a second for an answer.
func TestLocksJS_Events(t *testing.T) {
	s, p := newLockSite(t, long), NewProfile(t)
	tabs := map[string]*Tab{} // one for each script before the page's own
	for _, c := range []moduleCase{
		{
			name:   "acquired, renewed, released",
			script: renewOnce,
			want:   `"web-lock false"`,
			events: []string{taken, "attempt web-lock retry=0; renewed retry=0; renew-scheduled", released},
		},
		{
			name:   "without Workers the page's own timers renew the lock",
			before: withoutWorkers,
			script: renewOnce,
			want:   `"web-lock false"`,
		},
		{
			name:   "without Web Locks: only the server's lease, at once",
			before: withoutWebLocks,
			script: `locks.withProjectLock((lease) => lease.strategy + ' ' + lease.viaFallback, quick)`,
			want:   `"file-lock true"`,
			events: []string{
				noLocks, "attempt file-lock retry=0; acquired; renew-scheduled",
				"release-requested; attempt file-lock retry=0; released file-lock",
			},
		},
		{
			name:     "without Web Locks and held by another: read-only",
			before:   withoutWebLocks,
			held:     true,
			script:   `denied()`,
			want:     `"fallback-conflict"`,
			readonly: `"fallback-conflict"`,
			events: []string{
				noLocks,
				"attempt file-lock retry=0; warning fallback-degraded",
				"error file-lock fallback-conflict retry=0 retryable; waiting file-lock retry=0 wait=10",
				"attempt file-lock retry=1; warning fallback-degraded",
				"error file-lock fallback-conflict retry=1 retryable; waiting file-lock retry=1 wait=20",
				"attempt file-lock retry=2; warning fallback-degraded",
				"error file-lock fallback-conflict retry=2; readonly-entered fallback-conflict",
			},
		},
		{
			name:     "held by another: denied, without the fallback",
			held:     true,
			script:   `denied()`,
			want:     `"acquire-denied"`,
			readonly: `"acquire-denied"`,
			events: []string{
				tries("acquire-denied", 10, 20),
				"attempt web-lock retry=2; error web-lock acquire-denied retry=2; readonly-entered acquire-denied",
			},
		},
		{
			name:     "the server out of reach: three attempts, 500 ms and 1 s apart",
			script:   `(fail('POST', 3), denied({ backoffMs: undefined }))`,
			want:     `"acquire-timeout"`,
			readonly: `"acquire-timeout"`,
			events: []string{
				tries("acquire-timeout", 500, 1000),
				"attempt web-lock retry=2; error web-lock acquire-timeout retry=2; readonly-entered acquire-timeout",
			},
		},
		{
			name: "a renewal fails twice, then succeeds",
			script: `locks.withProjectLock(async (lease) => {
				fail('PUT', 2);
				return (await locks.renewProjectLock(lease)).renewAttempt;
			}, quick)`,
			want: `2`,
			events: []string{
				taken, tries("renew-failed", 10, 20),
				"attempt web-lock retry=2; renewed retry=2; renew-scheduled", released,
			},
		},
		{
			name: "two heartbeats in a row fail: read-only",
			script: `(async () => {
				fail('PUT', 6);
				const over = next('lock:readonly-entered');
				const lease = await take({ heartbeatIntervalMs: 1200, retryLimit: 2 });
				await over;
				return renews(lease);
			})()`,
			want:     `"renew-failed"`,
			readonly: `"renew-failed"`,
			events: []string{
				taken,
				tries("renew-failed", 10), "attempt web-lock retry=1; error web-lock renew-failed retry=1 retryable",
				"renew-scheduled",
				tries("renew-failed", 10), "attempt web-lock retry=1; error web-lock renew-failed retry=1 retryable",
				"readonly-entered renew-failed",
			},
		},
		{
			name: "a release whose answer is lost is tried again, and another has taken the room since",
			script: `(async () => {
				const lease = await take();
				globalThis.fetch = async (...of) => {
					globalThis.fetch = async () => new Response('{"error":"not_locked_by_user"}', { status: 403 });
					await real(...of);
					throw new TypeError('injected');
				};
				await locks.releaseProjectLock(lease);
			})()`,
			events: []string{
				taken, "release-requested",
				"attempt web-lock retry=0; release-failed retry=0; error web-lock release-failed retry=0 retryable",
				"waiting web-lock retry=0 wait=10; attempt web-lock retry=1; released web-lock",
			},
		},
		{
			name: "a release fails three times: read-only, until it is forced",
			script: `(async () => {
				const lease = await take();
				const force = { force: true };
				fail('DELETE', 4);
				// The second does nothing: the lease has ended.
				const failed = [await releases(lease), await releases(lease)];
				return [...failed, await releases(lease, force), await releases(lease, force)];
			})()`,
			want:     `["release-failed","none","release-failed","none"]`,
			readonly: `"release-failed"`,
			events: []string{
				taken, "release-requested",
				"attempt web-lock retry=0; release-failed retry=0; error web-lock release-failed retry=0 retryable",
				"waiting web-lock retry=0 wait=10",
				"attempt web-lock retry=1; release-failed retry=1; error web-lock release-failed retry=1 retryable",
				"waiting web-lock retry=1 wait=20",
				"attempt web-lock retry=2; release-failed retry=2; error web-lock release-failed retry=2 retryable",
				"readonly-entered release-failed",
				"release-requested force",
				"attempt web-lock retry=0; release-failed retry=0 force; error web-lock release-failed retry=0",
				"release-requested force; attempt web-lock retry=0; released web-lock",
			},
		},
		{
			name:   "two modules with the same owner are two holders",
			before: withoutWebLocks,
			script: `locks.withProjectLock(async (lease) => {
				const another = await import('/locks.js?another');
				const failed = await failure(another.acquireProjectLock({ ...quick, ownerId: 'a', retryLimit: 1 }));
				return [failed, await confirms(lease)];
			}, { ...quick, ownerId: 'a' })`,
			want: `["fallback-conflict","none"]`,
		},
	} {
		if tabs[c.before] == nil {
			tabs[c.before] = p.load(s, c.before)
		}
		t.Run(c.name, func(t *testing.T) { c.run(t, s, tabs[c.before].In(t)) })
	}
}

//go:embed testdata/module.js
var module string

func TestLocksJS(t *testing.T) {
	s := newLockSite(t, long)
	NewProfile(t).load(s, module).runCases(s.wantFree)
}
