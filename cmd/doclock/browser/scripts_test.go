package browser

// Scripts that run in a tab before the page's own.
const (
	// instrumented has fail(method, times), which makes that many next fetches
	// with the method fail; next(type), the next event of a type; quick, options
	// with short waits; readonly, the reasons that its onReadonly was called with;
	// and clocks, the Workers started and ended.
	instrumented = `
		const faults = {};
		const real = globalThis.fetch;
		globalThis.fail = (method, times) => { faults[method] = times; };
		globalThis.fetch = (url, init = {}) => {
			if (!(faults[init.method] > 0)) return real(url, init);
			faults[init.method]--;
			return Promise.reject(new TypeError('injected'));
		};
		globalThis.next = (type) => new Promise((resolve) => {
			const stop = locks.subscribeLockEvents((event) => { if (event.type === type) { stop(); resolve(event); } });
		});
		globalThis.failure = (promise) => promise.then(() => 'none', (error) => error.name === 'ProjectLockError' ? error.code : error.name);
		globalThis.readonly = [];
		globalThis.quick = { resource: 'room', backoffMs: [10, 20], onReadonly: ({ reason }) => readonly.push(reason) };
		globalThis.clocks = { started: 0, ended: 0 };
		globalThis.Worker = class extends Worker {
			constructor(...of) { super(...of); clocks.started++; }
			terminate() { clocks.ended++; super.terminate(); }
		};`
	withoutWebLocks = `delete Navigator.prototype.locks;`
	withoutWorkers  = `delete globalThis.Worker;`
	// withoutTimers leaves a page no timer of its own that is worth waiting for.
	withoutTimers = `globalThis.setTimeout = () => 0;`
)
