package browser

import "testing"

// overlaps are of two uses of the lock at a time.
var overlaps = []behaviour{
	{
		name: "an abort whose reason is another lock's loss is an abort, whatever it was in",
		script: `(async () => {
			const tried = [];
			const ask = fetch;
			for (const code of ['lease-stale', 'renew-failed', 'web-lock-unsupported']) {
				const reason = Object.assign(new Error(), { name: 'ProjectLockError', code, retryable: code === 'renew-failed' });
				const [waiting, asking] = [new AbortController(), new AbortController()];
				fail('POST', 1);
				next('lock:waiting').then(() => waiting.abort(reason));
				tried.push(await failure(locks.acquireProjectLock({ ...quick, backoffMs: [1e9], signal: waiting.signal })));
				globalThis.fetch = (url, init) => {
					const answer = ask(url, init);
					if (init.method === 'POST') asking.abort(reason);
					return answer;
				};
				tried.push(await failure(locks.acquireProjectLock({ ...quick, signal: asking.signal })));
				globalThis.fetch = ask;
			}
			const count = (wanted) => events.filter(({ type }) => type === wanted).length;
			return [tried, readonly, count('lock:attempt'), count('lock:error')];
		})()`,
		says: `[["lease-stale","lease-stale","renew-failed","renew-failed","web-lock-unsupported","web-lock-unsupported"],[],6,3]`,
	},
	{
		name: "who asks again right after a loss waits until the lost lease is given back",
		script: `(async () => {
			const ask = fetch;
			globalThis.fetch = async (url, init) => {
				if (init.method === 'DELETE') await new Promise((resolve) => setTimeout(resolve, 300));
				return ask(url, init);
			};
			const over = next('lock:readonly-entered');
			await locks.acquireProjectLock(quick);
			await navigator.locks.request('room', { steal: true }, () => {});
			await over;
			return failure(locks.withProjectLock(() => {}, { ...quick, retryLimit: 1 }));
		})()`,
		says: `"none"`,
	},
	{
		name: "who asks again from within onReadonly waits for that too",
		script: `(async () => {
			const ask = fetch;
			globalThis.fetch = async (url, init) => {
				if (init.method === 'DELETE') await new Promise((resolve) => setTimeout(resolve, 300));
				return ask(url, init);
			};
			const again = new Promise((resolve) => {
				const onReadonly = () => resolve(failure(locks.withProjectLock(() => {}, { ...quick, retryLimit: 1 })));
				locks.acquireProjectLock({ ...quick, onReadonly });
			});
			await next('lock:acquired');
			await navigator.locks.request('room', { steal: true }, () => {});
			return again;
		})()`,
		says: `"none"`,
	},
	{
		name: "who asks again waits for the slower of two give-backs",
		script: `(async () => {
			const ask = fetch;
			const alone = { ...quick, preferredStrategy: 'file-lock', retryLimit: 1 };
			const lease = await locks.acquireProjectLock(alone);
			const abort = new AbortController();
			const waiting = next('lock:waiting');
			fail('POST', 1);
			const second = failure(locks.acquireProjectLock({ ...alone, retryLimit: 2, backoffMs: [1e9], signal: abort.signal }));
			await waiting; // not knowing whether it has the lease
			let slow = true;
			globalThis.fetch = async (url, init) => {
				if (url.includes('/confirm')) return new Response('{"error":"not_locked_by_user"}', { status: 403 });
				if (init.method === 'DELETE' && slow) {
					slow = false;
					await new Promise((resolve) => setTimeout(resolve, 600));
				}
				return ask(url, init);
			};
			const lost = await failure(locks.confirmProjectLock(lease));
			abort.abort();
			return [lost, await second, await failure(locks.withProjectLock(() => {}, alone))];
		})()`,
		says: `["lease-stale","AbortError","none"]`,
	},
	{
		name: "a release beside the work ends its signal first, and what the work comes to counts",
		script: `(async () => {
			const ask = fetch;
			const seen = [];
			globalThis.fetch = (url, init) => { seen.push(init.method); return ask(url, init); };
			const work = (after) => failure(locks.withProjectLock(async (lease, lost) => {
				const again = new Promise((resolve) => {
					lost.onabort = () => { seen.push(lost.reason.name); resolve(locks.releaseProjectLock(lease)); };
				});
				await Promise.all([locks.releaseProjectLock(lease), again]);
				after(lost);
			}, quick));
			return [await work(() => {}), await work((lost) => lost.throwIfAborted()), seen, readonly];
		})()`,
		says: `["none","AbortError",["POST","AbortError","DELETE","POST","AbortError","DELETE"],[]]`,
	},
	{
		name:   "the release after the work leaves its signal alone",
		script: `locks.withProjectLock((lease, lost) => lost, quick).then((lost) => lost.aborted)`,
		says:   `false`,
	},
	{
		name: "a release beside the work that fails is a loss",
		script: `(async () => {
			let mine;
			const failed = await failure(locks.withProjectLock(async (lease) => {
				mine = lease;
				fail('DELETE', 3);
				await locks.releaseProjectLock(lease).catch(() => {});
			}, quick));
			await locks.releaseProjectLock(mine, { force: true });
			return [failed, readonly];
		})()`,
		says: `["release-failed",["release-failed"]]`,
	},
}

func TestTwoUsesOfTheLockAtATimeDoNotMistakeEachOther(t *testing.T) { eachBehaves(t, overlaps) }
