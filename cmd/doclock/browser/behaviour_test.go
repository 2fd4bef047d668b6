package browser

import (
	"testing"
)

// A behaviour is what a script that uses the module comes to.
type behaviour struct {
	name   string
	before string // script before the page's own
	script string
	says   string
}

var behaviours = []behaviour{
	{
		name: "an abort during the request gives both locks back before it throws",
		script: `(async () => {
			const abort = new AbortController();
			const ask = fetch;
			globalThis.fetch = (url, init) => {
				const answer = ask(url, init);
				if (init.method === 'POST') abort.abort();
				return answer;
			};
			const failed = await failure(locks.acquireProjectLock({ ...quick, signal: abort.signal }));
			const state = await (await ask('/api/documents/room/lock')).json();
			return [failed, state.is_locked, (await navigator.locks.query()).held.length, readonly, events.map((e) => e.type)];
		})()`,
		says: `["AbortError",false,0,[],["lock:attempt"]]`,
	},
	{
		name: "an abort during a wait ends it, and the page can ask again",
		script: `(async () => {
			const abort = new AbortController();
			fail('POST', 1);
			next('lock:waiting').then(() => abort.abort());
			const failed = await failure(locks.acquireProjectLock({ ...quick, backoffMs: [1e9], signal: abort.signal }));
			await locks.releaseProjectLock(await locks.acquireProjectLock(quick));
			return [failed, readonly, clocks.started === clocks.ended];
		})()`,
		says: `["AbortError",[],true]`,
	},
	{
		name:   "an abort before the start takes nothing",
		script: `failure(locks.acquireProjectLock({ ...quick, signal: AbortSignal.abort() })).then((failed) => [failed, events.length])`,
		says:   `["AbortError",0]`,
	},
	{
		name: "unsubscribing ends the events of that listener alone, and may be done again",
		script: `(async () => {
			const heard = [[], []];
			const listen = (event) => heard[0].push(event.type);
			const stops = [locks.subscribeLockEvents(listen), locks.subscribeLockEvents((event) => heard[1].push(event.type))];
			const lease = await locks.acquireProjectLock(quick);
			stops[0](); stops[0]();
			await locks.releaseProjectLock(lease);
			return heard.map((types) => types.length);
		})()`,
		says: `[3,6]`,
	},
	{
		name: "a listener that throws disturbs nobody",
		script: `(async () => {
			addEventListener('error', (event) => event.preventDefault());
			const stop = locks.subscribeLockEvents(() => { throw new Error('mine'); });
			await locks.withProjectLock(() => {}, quick);
			stop();
			return events.length;
		})()`,
		says: `6`,
	},
	{
		name: "an error of the work releases the lock and is the one that is thrown",
		script: `(async () => {
			const failed = await locks.withProjectLock(() => { throw new Error('mine'); }, quick).catch((error) => error.message);
			return [failed, events.at(-1).type];
		})()`,
		says: `["mine","lock:released"]`,
	},
	{
		name: "with releaseOnError false an error of the work leaves the lock to the caller",
		script: `(async () => {
			let mine;
			await locks.withProjectLock((lease) => { mine = lease; throw new Error('mine'); }, { ...quick, releaseOnError: false }).catch(() => {});
			const confirmed = await locks.confirmProjectLock(mine);
			await locks.releaseProjectLock(mine);
			return confirmed.token === mine.token && confirmed.validForMs > 0;
		})()`,
		says: `true`,
	},
	{
		name: "work is not run twice, whatever it throws",
		script: `(async () => {
			let runs = 0;
			await locks.withProjectLock(() => { runs++; throw Object.assign(new Error(), { name: 'ProjectLockError', retryable: true }); }, quick).catch(() => {});
			return runs;
		})()`,
		says: `1`,
	},
	{
		name: "a Web Lock that is stolen is a lock that is lost, and the work's signal says so",
		script: `locks.withProjectLock(async (lease, lost) => {
			await navigator.locks.request('room', { steal: true }, () => {});
			await new Promise((resolve) => { if (lost.aborted) resolve(); lost.onabort = resolve; });
			return 'done';
		}, quick).then(() => 'no error', (error) => [error.code, error.retryable, readonly])`,
		says: `["lease-stale",false,["lease-stale"]]`,
	},
	{
		name:   "what is held here is refused to this page too, also without Web Locks",
		before: withoutWebLocks,
		script: `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			const failed = await failure(locks.acquireProjectLock({ ...quick, retryLimit: 1 }));
			await locks.confirmProjectLock(lease);
			await locks.releaseProjectLock(lease);
			return failed;
		})()`,
		says: `"fallback-conflict"`,
	},
	{
		name: "what the server will never allow is not tried again",
		script: `failure(locks.acquireProjectLock({ ...quick, ownerId: 'not a name' })).then((failed) =>
			[failed, events.filter(({ type }) => type === 'lock:attempt').length])`,
		says: `["acquire-denied",1]`,
	},
	{
		name: "the next heartbeat is 10 s from now or a margin before the end",
		script: `(async () => {
			const due = async (options) => {
				const scheduled = next('lock:renew-scheduled');
				const lease = await locks.acquireProjectLock({ ...quick, ...options });
				await locks.releaseProjectLock(lease);
				const span = Date.parse(lease.expiresAt) - Date.parse(lease.acquiredAt);
				const near = (ms, want) => ms <= want && ms > want - 2000;
				return [lease.ttlMs, near(span, lease.ttlMs), Math.round((await scheduled).nextHeartbeatInMs / 1000)];
			};
			return [await due({}), await due({ preferredStrategy: 'file-lock' }), await due({ ttlMs: 10000, heartbeatIntervalMs: 60000 })];
		})()`,
		says: `[[25000,true,10],[30000,true,10],[10000,true,4]]`,
	},
	{
		name: "a slow answer does not extend the trust in it",
		script: `(async () => {
			const ask = fetch;
			globalThis.fetch = async (...of) => {
				const answer = await ask(...of);
				await new Promise((resolve) => setTimeout(resolve, 1000));
				return answer;
			};
			const lease = await locks.acquireProjectLock(quick);
			const left = Date.parse(lease.expiresAt) - Date.now();
			const renewed = await locks.renewProjectLock(lease);
			const leftThen = Date.parse(renewed.expiresAt) - Date.now();
			await locks.releaseProjectLock(lease);
			return [left <= 24001, leftThen <= 24001, left > 15000];
		})()`,
		says: `[true,true,true]`,
	},
	{
		name: "a renewal that never comes back ends with the TTL",
		script: `(async () => {
			const ask = fetch;
			globalThis.fetch = (url, init) => (init.method === 'PUT' ? new Promise(() => {}) : ask(url, init));
			const over = next('lock:readonly-entered');
			await locks.acquireProjectLock({ ...quick, ttlMs: 3000 });
			return [(await over).info.reason, readonly, events.slice(-2).map(({ type, code }) => [type, code])];
		})()`,
		says: `["lease-stale",["lease-stale"],[["lock:error","lease-stale"],["lock:readonly-entered",null]]]`,
	},
	{
		name: "read-only is entered once, whoever finds out, and not once it is released",
		script: `(async () => {
			const ask = fetch;
			const asked = [];
			globalThis.fetch = (url, init) => (!url.includes('/confirm') ? ask(url, init)
				: new Promise((answer) => asked.push(() => answer(new Response('{"error":"not_locked_by_user"}', { status: 403 })))));
			const confirm = (lease) => failure(locks.confirmProjectLock(lease));
			const entered = () => [readonly.length, events.filter(({ type }) => type === 'lock:readonly-entered').length];
			const first = await locks.acquireProjectLock(quick);
			const both = [confirm(first), confirm(first)];
			while (asked.length > 0) asked.shift()();
			const found = [await Promise.all(both), entered()];
			const second = await locks.acquireProjectLock(quick);
			const late = confirm(second);
			await locks.releaseProjectLock(second);
			asked.shift()();
			return [...found, await late, entered()];
		})()`,
		says: `[["lease-stale","lease-stale"],[1,1],"lease-stale",[1,1]]`,
	},
	{
		name: "a heartbeat that comes late by more than an interval is told",
		script: `(async () => {
			const warning = next('lock:warning');
			const renewed = next('lock:renewed');
			const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 400 });
			const busyUntil = performance.now() + 1000;
			while (performance.now() < busyUntil); // due after 400, late after 800
			const told = await warning;
			await renewed;
			await locks.releaseProjectLock(lease);
			return [told.warning, told.leaseId === lease.leaseId, told.lateMs > 400];
		})()`,
		says: `["heartbeat-delayed",true,true]`,
	},
	{
		name: "a lease says all that its holder may want to know, and cannot be changed",
		script: `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			await locks.releaseProjectLock(lease);
			return [Object.keys(lease).sort(), Object.isFrozen(lease), lease.resource];
		})()`,
		says: `[["acquiredAt","expiresAt","holder","leaseId","nextHeartbeatAt","renewAttempt","resource","strategy","token","ttlMs","viaFallback"],true,"room"]`,
	},
	{
		name: "a lease that was released is stale, and releasing it again is nothing",
		script: `(async () => {
			const lease = await locks.acquireProjectLock(quick);
			await Promise.all([locks.releaseProjectLock(lease), locks.releaseProjectLock(lease)]);
			await locks.releaseProjectLock(lease, { force: true });
			return [await failure(locks.renewProjectLock(lease)), await failure(locks.confirmProjectLock(lease)), readonly, events.length];
		})()`,
		says: `["lease-stale","lease-stale",[],6]`,
	},
	{
		name:   "without Workers the page's own timers keep the lock",
		before: withoutWorkers,
		script: `(async () => {
			const heartbeat = next('lock:renewed');
			const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 600 });
			await heartbeat;
			await locks.releaseProjectLock(lease);
		})()`,
	},
	{
		name:   "a Worker's timers keep the lock where the page's own do not run",
		before: withoutTimers,
		script: `(async () => {
			const heartbeat = next('lock:renewed');
			const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 600 });
			await heartbeat;
			await locks.releaseProjectLock(lease);
			return clocks;
		})()`,
		says: `{"started":1,"ended":1}`,
	},
	{
		name: "nothing is sent after a release",
		script: `(async () => {
			const lease = await locks.acquireProjectLock({ ...quick, heartbeatIntervalMs: 600 });
			await next('lock:renewed');
			await locks.releaseProjectLock(lease);
			let sent = 0;
			globalThis.fetch = () => { sent++; return Promise.reject(new TypeError('none')); };
			await new Promise((resolve) => setTimeout(resolve, 900));
			return sent;
		})()`,
		says: `0`,
	},
	{
		name:   "without an option the lock is imgponic:project",
		script: `locks.withProjectLock(async (lease) => [lease.resource, (await navigator.locks.query()).held.map(({ name, mode }) => name + ' ' + mode)])`,
		says:   `["imgponic:project",["imgponic:project exclusive"]]`,
	},
}

func TestTheModuleBehavesAsItSays(t *testing.T) { eachBehaves(t, behaviours) }

func eachBehaves(t *testing.T, behaviours []behaviour) {
	t.Helper()
	s := newSite(t, lasting)
	p := newProfile(t)
	for _, c := range behaviours {
		t.Run(c.name, func(t *testing.T) {
			b := p.in(t).load(s.room("another"), instrumented+c.before)
			if got, want := b.Eval(c.script), c.says; got != want {
				t.Errorf("the script came to %s, want %s", got, want)
			}
			s.free(t, "room")
			b.Close()
		})
	}
}
