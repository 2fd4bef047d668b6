package browser

import "testing"

// Events that most sequences begin and end with.
const (
	taken    = "attempt web-lock retry=0; acquired; renew-scheduled"
	released = "release-requested; attempt web-lock retry=0; released web-lock"
	noLocks  = "attempt web-lock retry=0; error web-lock web-lock-unsupported retry=0; waiting file-lock retry=0 wait=0; " +
		"fallback-engaged file-lock web-lock-unsupported"
)

// renewOnce is a script that takes the room and releases it after a heartbeat.
const renewOnce = `(async () => {
	const heartbeat = next('lock:renewed');
	const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 1200 });
	await heartbeat;
	await locks.releaseProjectLock(lease);
	return lease.strategy + ' ' + lease.viaFallback;
})()`

// moduleCase runs a script that uses the module. Afterwards nothing of the page may
// hold the room.
type moduleCase struct {
	name     string
	before   string // script before the page's own
	held     bool   // another holds the room
	script   string
	want     string   // what script returns
	readonly string   // the reasons of onReadonly; if events are compared
	events   []string // nil: not compared
}

// testModule runs the cases. It is not parallel to other tests: with quick heartbeats the
// module waits half a second for an answer.
func testModule(t *testing.T, cases []moduleCase) {
	t.Helper()
	s, p := newLockSite(t, long), NewProfile(t)
	tabs := map[string]*Tab{} // one for each script before the page's own
	for _, c := range cases {
		if tabs[c.before] == nil {
			tabs[c.before] = p.load(s, c.before)
		}
		t.Run(c.name, func(t *testing.T) {
			b := tabs[c.before].In(t)
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
			s.free(t, "room")
			b.Is(`clocks.started === clocks.ended`)
			b.want(`navigator.locks?.query().then(({ held }) => held.length) ?? 0`, "0")
		})
	}
}

func TestEachSequenceOfEventsIsExactAndFreesWhatItTook(t *testing.T) {
	testModule(t, []moduleCase{
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
			script:   `failure(locks.acquireProjectLock(quick))`,
			want:     `"fallback-conflict"`,
			readonly: `"fallback-conflict"`,
			events: []string{
				noLocks,
				"attempt file-lock retry=0; warning fallback-degraded; error file-lock fallback-conflict retry=0 retryable",
				"waiting file-lock retry=0 wait=10",
				"attempt file-lock retry=1; warning fallback-degraded; error file-lock fallback-conflict retry=1 retryable",
				"waiting file-lock retry=1 wait=20",
				"attempt file-lock retry=2; warning fallback-degraded; error file-lock fallback-conflict retry=2",
				"readonly-entered fallback-conflict",
			},
		},
		{
			name:     "held by another: denied, without the fallback",
			held:     true,
			script:   `failure(locks.acquireProjectLock(quick))`,
			want:     `"acquire-denied"`,
			readonly: `"acquire-denied"`,
			events: []string{
				"attempt web-lock retry=0; error web-lock acquire-denied retry=0 retryable; waiting web-lock retry=0 wait=10",
				"attempt web-lock retry=1; error web-lock acquire-denied retry=1 retryable; waiting web-lock retry=1 wait=20",
				"attempt web-lock retry=2; error web-lock acquire-denied retry=2; readonly-entered acquire-denied",
			},
		},
		{
			name:     "the server out of reach: three attempts, 500 ms and 1 s apart",
			script:   `(fail('POST', 3), failure(locks.acquireProjectLock({ ...quick, backoffMs: undefined })))`,
			want:     `"acquire-timeout"`,
			readonly: `"acquire-timeout"`,
			events: []string{
				"attempt web-lock retry=0; error web-lock acquire-timeout retry=0 retryable; waiting web-lock retry=0 wait=500",
				"attempt web-lock retry=1; error web-lock acquire-timeout retry=1 retryable; waiting web-lock retry=1 wait=1000",
				"attempt web-lock retry=2; error web-lock acquire-timeout retry=2; readonly-entered acquire-timeout",
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
			want: `2`,
			events: []string{
				taken,
				"attempt web-lock retry=0; error web-lock renew-failed retry=0 retryable; waiting web-lock retry=0 wait=10",
				"attempt web-lock retry=1; error web-lock renew-failed retry=1 retryable; waiting web-lock retry=1 wait=20",
				"attempt web-lock retry=2; renewed retry=2; renew-scheduled", released,
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
			want:     `"renew-failed"`,
			readonly: `"renew-failed"`,
			events: []string{
				taken,
				"attempt web-lock retry=0; error web-lock renew-failed retry=0 retryable; waiting web-lock retry=0 wait=10",
				"attempt web-lock retry=1; error web-lock renew-failed retry=1 retryable; renew-scheduled",
				"attempt web-lock retry=0; error web-lock renew-failed retry=0 retryable; waiting web-lock retry=0 wait=10",
				"attempt web-lock retry=1; error web-lock renew-failed retry=1 retryable; readonly-entered renew-failed",
			},
		},
		{
			name: "a release whose answer is lost is tried again, and another has taken the room since",
			script: `(async () => {
				const lease = await locks.acquireProjectLock(quick);
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
				const lease = await locks.acquireProjectLock(quick);
				fail('DELETE', 4);
				const failures = [await failure(locks.releaseProjectLock(lease))];
				await locks.releaseProjectLock(lease); // does nothing: the lease has ended
				failures.push(await failure(locks.releaseProjectLock(lease, { force: true })));
				await locks.releaseProjectLock(lease, { force: true });
				return failures;
			})()`,
			want:     `["release-failed","release-failed"]`,
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
	})
}

func TestTheModuleBehavesAsDocumented(t *testing.T) {
	var cases []moduleCase
	for _, c := range []struct{ name, script, want string }{
		{"an abort during the request releases both locks before it throws", `(async () => {
			const abort = new AbortController();
			globalThis.fetch = (url, init) => {
				const answer = real(url, init);
				if (init.method === 'POST') abort.abort();
				return answer;
			};
			const failed = await failure(locks.acquireProjectLock({ ...quick, signal: abort.signal }));
			const state = await (await real('/api/documents/room/lock')).json();
			return [failed, state.is_locked, (await navigator.locks.query()).held.length, readonly, events.map((e) => e.type)];
		})()`, `["AbortError",false,0,[],["lock:attempt"]]`},
		{"an acquisition whose answer is lost frees what it took, by a request that outlives the page", `(async () => {
			const sent = [];
			globalThis.fetch = async (url, init) => {
				sent.push(init.method, init.keepalive);
				const answer = await real(url, init);
				if (init.method === 'POST') throw new TypeError('injected');
				return answer;
			};
			return [await failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 })), sent];
		})()`, `["acquire-timeout",["POST",false,"DELETE",true]]`},
		{"a page of a proxy is no answer of the server's", `(async () => {
			globalThis.fetch = async () => new Response('<html>');
			return failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 }));
		})()`, `"acquire-timeout"`},
		{"a Web Lock that the browser grants after the timeout is given back", `(async () => {
			const { locks: manager } = navigator;
			const after = (ms, value) => new Promise((resolve) => setTimeout(resolve, ms, value));
			let late;
			manager.request = (...of) => (late = after(600).then(() => LockManager.prototype.request.apply(manager, of)));
			const failed = await failure(locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 400, retryLimit: 1 }));
			delete manager.request;
			return [failed, await Promise.race([late, after(2000, 'held')]) ?? 'given back'];
		})()`, `["acquire-timeout","given back"]`},
		{"an abort during a wait ends it, and the page can ask again", `(async () => {
			const abort = new AbortController();
			fail('POST', 1);
			next('lock:waiting').then(() => abort.abort());
			const failed = await failure(locks.acquireProjectLock({ ...quick, backoffMs: [1e9], signal: abort.signal }));
			await locks.releaseProjectLock(await locks.acquireProjectLock(quick));
			return [failed, readonly];
		})()`, `["AbortError",[]]`},
		{"unsubscribing ends the events of only that listener, and may be repeated", `(async () => {
			const received = [0, 0];
			const listen = () => received[0]++;
			const stops = [locks.subscribeLockEvents(listen), locks.subscribeLockEvents(() => received[1]++)];
			const lease = await locks.acquireProjectLock(quick);
			stops[0](); stops[0]();
			await locks.releaseProjectLock(lease);
			stops[1]();
			return received;
		})()`, `[3,6]`},
		{"a subscriber gets the events of both seeds", `(async () => {
			const seen = new Set();
			const stop = locks.subscribeLockEvents(({ type }) => seen.add(type.replace('lock:', '')));
			fail('POST', 1);
			fail('DELETE', 1);
			await locks.releaseProjectLock(await locks.renewProjectLock(await locks.acquireProjectLock(quick)));
			await locks.withProjectLock(() => failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 })), quick);
			stop();
			return [...seen].sort().join(' ');
		})()`, `"acquired attempt error readonly-entered release-failed release-requested released renew-scheduled renewed waiting"`},
		{"a list of three waits means four attempts, unless their number is given", `(async () => {
			const made = async (options) => {
				fail('POST', 9);
				await failure(locks.acquireProjectLock({ ...quick, ...options }));
				return events.splice(0).filter(({ type }) => type === 'lock:attempt').length;
			};
			const backoffMs = [1, 2, 3];
			return [await made({ backoffMs }), await made({ backoffMs, retryLimit: 3 }), await made({ backoffMs, backoff: { maxAttempts: 2 } }),
				await made({ backoffMs: undefined, backoff: { initialMs: 1 } }), await made({ backoffMs: [] })];
		})()`, `[4,3,2,3,1]`},
		{"too many locks are a refusal, not a request without an answer", `(async () => {
			const sent = [];
			globalThis.fetch = async (url, { method }) => { sent.push(method); return new Response('{"error":"too_many_locks"}', { status: 429 }); };
			const error = await locks.acquireProjectLock({ ...quick, retryLimit: 2 }).catch((error) => error);
			globalThis.fetch = real;
			return [error.code, error.retryable, error.message, readonly, events.filter(({ retryable }) => retryable).length, sent];
		})()`, `["acquire-denied",false,"project lock: acquire-denied: this session holds too many locks",["acquire-denied"],1,["POST","POST"]]`},
		{"answers that pass are tried again and keep the lock, also after an abort of its acquisition's signal", `(async () => {
			const abort = new AbortController();
			const lease = await locks.acquireProjectLock({ ...quick, signal: abort.signal });
			abort.abort();
			const statuses = [429];
			globalThis.fetch = async (...of) => (statuses.length > 0 ? new Response('{}', { status: statuses.shift() }) : real(...of));
			const confirmed = await failure(locks.confirmProjectLock(lease));
			statuses.push(429, 503);
			const renewed = await failure(Promise.all([locks.renewProjectLock(lease), locks.renewProjectLock(lease)])); // one renewal
			statuses.push(408, 429);
			await locks.releaseProjectLock(lease);
			globalThis.fetch = real;
			return [confirmed, renewed, readonly];
		})()`, `["renew-failed","none",[]]`},
		{"failed heartbeats with a successful one between them keep the lock", `(async () => {
			const lease = await locks.acquireProjectLock({ ...quick, retryLimit: 1 });
			const outcomes = [];
			for (const failures of [1, 0, 1, 0, 1]) {
				fail('PUT', failures);
				outcomes.push(await failure(locks.renewProjectLock(lease)));
			}
			await locks.releaseProjectLock(lease);
			return [outcomes, readonly];
		})()`, `[["renew-failed","none","renew-failed","none","renew-failed"],[]]`},
		{"an error of a listener or of onReadonly changes nothing, and the page gets it", `(async () => {
			const reported = [];
			const report = globalThis.reportError;
			globalThis.reportError = ({ message }) => reported.push(message);
			const stop = locks.subscribeLockEvents(({ type }) => { if (type === 'lock:acquired') throw new Error(type); });
			await locks.withProjectLock(() => failure(locks.acquireProjectLock({ ...quick, retryLimit: 1, onReadonly: () => { throw new Error('mine'); } })), quick);
			stop();
			globalThis.reportError = report;
			return [reported, events.at(-1).type];
		})()`, `[["lock:acquired","mine"],"lock:released"]`},
		{"a wait is 4 s at most, unless a longer one is the first", `(async () => {
			const longest = [];
			for (const backoff of [{ initialMs: 1, factor: 1e6 }, { initialMs: 5000, factor: 1 }]) {
				const abort = new AbortController();
				fail('POST', 9);
				const stop = locks.subscribeAllLockEvents(({ type, waitMs }) => { if (type === 'lock:waiting' && waitMs > 1) { longest.push(waitMs); abort.abort(); } });
				await failure(locks.acquireProjectLock({ ...quick, backoffMs: undefined, backoff, signal: abort.signal }));
				stop();
			}
			return longest;
		})()`, `[4000,5000]`},
		{"an error of the work releases the lock and is thrown", `locks.withProjectLock(() => { throw new Error('mine'); }, quick)
			.catch((error) => [error.message, events.at(-1).type])`, `["mine","lock:released"]`},
		{"with releaseOnError false an error of the work leaves the lock to the caller", `(async () => {
			let mine;
			await locks.withProjectLock((lease) => { mine = lease; throw new Error('mine'); }, { ...quick, releaseOnError: false }).catch(() => {});
			const confirmed = await locks.confirmProjectLock(mine);
			await locks.releaseProjectLock(mine);
			return confirmed.token === mine.token && confirmed.validForMs > 0;
		})()`, `true`},
		{"a release during the work aborts its signal first, and the work's result counts", `(async () => {
			const seen = [];
			globalThis.fetch = (url, init) => { seen.push(init.method); return real(url, init); };
			const work = (after) => failure(locks.withProjectLock(async (lease, lost) => {
				const again = new Promise((resolve) => {
					lost.onabort = () => { seen.push(lost.reason.name); resolve(locks.releaseProjectLock(lease)); };
				});
				await Promise.all([locks.releaseProjectLock(lease), again]);
				after(lost);
			}, quick));
			return [await work(() => {}), await work((lost) => lost.throwIfAborted()), seen, readonly];
		})()`, `["none","AbortError",["POST","AbortError","DELETE","POST","AbortError","DELETE"],[]]`},
		{"a release that arrives late does not free the page's next lease", `(async () => {
			const late = [];
			globalThis.fetch = (url, init) => {
				if (init.method !== 'DELETE') return real(url, init);
				late.push(() => real(url, { method: 'DELETE', headers: init.headers }));
				return Promise.reject(new TypeError('injected'));
			};
			const first = await locks.acquireProjectLock({ ...quick, ownerId: 'owner' });
			await failure(locks.releaseProjectLock(first));
			globalThis.fetch = real;
			await late.shift()(); // frees the room
			const second = await locks.acquireProjectLock({ ...quick, ownerId: 'owner' });
			const statuses = await Promise.all(late.map((send) => send().then(({ status }) => status)));
			const confirmed = await failure(locks.confirmProjectLock(second));
			await locks.releaseProjectLock(second);
			return [statuses, confirmed];
		})()`, `[[403,403],"none"]`},
		{"the next heartbeat is 10 s from now or a margin before the end", `(async () => {
			const due = async (options) => {
				const scheduled = next('lock:renew-scheduled');
				const lease = await locks.acquireProjectLock({ ...quick, ...options });
				await locks.releaseProjectLock(lease);
				return [lease.ttlMs, Math.round((await scheduled).nextHeartbeatInMs / 1000)];
			};
			const ours = [await due({}), await due({ preferredStrategy: 'file-lock' }), await due({ ttlMs: 10000, heartbeatIntervalMs: 60000 })];
			globalThis.fetch = async (...of) => new Response(JSON.stringify({ ...await (await real(...of)).json(), ttl_ms: 5000 }));
			return [...ours, await due({})]; // the last one's is the server's
		})()`, `[[25000,10],[30000,10],[10000,4],[5000,2]]`},
		{"a lease is trusted for nine tenths of the server's TTL at most", `(async () => {
			const trusted = async (options, ttl) => {
				globalThis.fetch = async (...of) => new Response(JSON.stringify({ ...await (await real(...of)).json(), ttl_ms: ttl }));
				const lease = await locks.acquireProjectLock({ ...quick, ...options });
				await locks.releaseProjectLock(lease);
				return (Date.parse(lease.expiresAt) - Date.parse(lease.acquiredAt)) / ttl;
			};
			return [await trusted({ preferredStrategy: 'file-lock' }, 30000), await trusted({ ttlMs: 60000 }, 10000)].map((part) => part <= 0.9 && part > 0.2);
		})()`, `[true,true]`},
		{"a slow answer does not extend the trust in the lease", `(async () => {
			globalThis.fetch = async (...of) => {
				const answer = await real(...of);
				await new Promise((resolve) => setTimeout(resolve, 500));
				return answer;
			};
			const lease = await locks.acquireProjectLock({ ...quick, ttlMs: 25000 });
			const left = Date.parse(lease.expiresAt) - Date.now();
			const renewed = await locks.renewProjectLock(lease, { ttlMs: 20000 });
			const leftThen = Date.parse(renewed.expiresAt) - Date.now();
			const { validForMs } = await locks.confirmProjectLock(lease);
			globalThis.fetch = async () => {
				await new Promise((resolve) => setTimeout(resolve, 500));
				return new Response('{"valid_for_ms":10000}');
			};
			const confirmed = await locks.confirmProjectLock(lease);
			globalThis.fetch = real;
			await locks.releaseProjectLock(lease);
			return [left <= 24501, leftThen <= 19501, validForMs <= 19001, confirmed.validForMs <= 9501, left > 15000];
		})()`, `[true,true,true,true,true]`},
		{"a renewal without an answer ends with the TTL", `(async () => {
			globalThis.fetch = (url, init) => (init.method === 'PUT' ? new Promise(() => {}) : real(url, init));
			const over = next('lock:readonly-entered');
			await locks.acquireProjectLock({ ...quick, ttlMs: 2000 });
			return [(await over).info.reason, readonly, events.slice(-2).map(({ type, code }) => [type, code])];
		})()`, `["lease-stale",["lease-stale"],[["lock:error","lease-stale"],["lock:readonly-entered",null]]]`},
		{"a heartbeat that is late by more than an interval is a warning", `(async () => {
			const warning = next('lock:warning');
			const renewed = next('lock:renewed');
			const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 400 });
			const busyUntil = performance.now() + 1000;
			while (performance.now() < busyUntil); // due after 400, late after 800
			const { warning: kind, leaseId, lateMs } = await warning;
			await renewed;
			await locks.releaseProjectLock(lease);
			return [kind, leaseId === lease.leaseId, lateMs > 400];
		})()`, `["heartbeat-delayed",true,true]`},
		{"without an option the lock is imgponic:project, and its lease cannot be changed", `locks.withProjectLock(async (lease) => [
			Object.keys(lease).sort(), Object.isFrozen(lease), (await navigator.locks.query()).held.map(({ name, mode }) => name + ' ' + mode)])`, `[["acquiredAt","client","expiresAt","holder","leaseId","nextHeartbeatAt","renewAttempt","resource","strategy","token","ttlMs","viaFallback"],true,["imgponic:project exclusive"]]`},
		{"a lease that was released is stale, and releasing it again does nothing", `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			await Promise.all([locks.releaseProjectLock(lease), locks.releaseProjectLock(lease)]);
			await locks.releaseProjectLock(lease, { force: true });
			return [await failure(locks.renewProjectLock(lease)), await failure(locks.confirmProjectLock(lease)), readonly, events.length];
		})()`, `["lease-stale","lease-stale",[],6]`},
		{"a lease that is released during its confirmation is stale", `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			globalThis.fetch = async (...of) => {
				globalThis.fetch = real;
				const answer = await real(...of);
				await locks.releaseProjectLock(lease);
				return answer;
			};
			return failure(locks.confirmProjectLock(lease));
		})()`, `"lease-stale"`},
	} {
		cases = append(cases, moduleCase{name: c.name, script: c.script, want: c.want})
	}
	cases = append(cases, moduleCase{name: "two modules with the same owner are two holders", before: withoutWebLocks, script: `(async () => {
			const options = { ...quick, ownerId: 'a'.repeat(64), retryLimit: 1 };
			const lease = await locks.acquireProjectLock(options);
			const another = await import('/locks.js?another');
			const failed = await failure(another.acquireProjectLock(options));
			const confirmed = await failure(locks.confirmProjectLock(lease));
			await locks.releaseProjectLock(lease);
			return [failed, confirmed];
		})()`, want: `["fallback-conflict","none"]`})
	testModule(t, cases)
}
