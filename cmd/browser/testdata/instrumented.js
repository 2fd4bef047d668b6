// What the tests of the lock's module use in a tab, in which it is `locks`, and its events are in `events`.

/** Answers with the browser's own fetch. */
globalThis.real = globalThis.fetch;

/** Makes the next fetches with the method fail. */
globalThis.fail = (method, times) => { faults[method] = times; };
const faults = {};
const faulty = (url, init = {}) => {
  if (!(faults[init.method] > 0)) return real(url, init);
  faults[init.method]--;
  return Promise.reject(new TypeError('injected'));
};

/** Returns a fetch whose answers are the server's with this change. */
globalThis.patched = (change) => async (...request) => {
  const body = await (await real(...request)).json();
  return new Response(JSON.stringify({ ...body, ...change }));
};

globalThis.sleep = (ms, value) => new Promise((resolve) => setTimeout(resolve, ms, value));

/** The reasons of onReadonly. */
globalThis.readonly = [];

/** Options with short waits. */
globalThis.quick = { resource: 'room', backoffMs: [10, 20], onReadonly: ({ reason }) => readonly.push(reason) };

/** Takes the room. */
globalThis.take = (options) => locks.acquireProjectLock({ ...quick, ...options });

/** The code, or else the name, of a promise's error. */
globalThis.failure = (promise) =>
  promise.then(() => 'none', (error) => (error.name === 'ProjectLockError' ? error.code : error.name));
globalThis.denied = (options) => failure(take(options));
globalThis.renews = (lease) => failure(locks.renewProjectLock(lease));
globalThis.confirms = (lease) => failure(locks.confirmProjectLock(lease));
globalThis.releases = (lease, options) => failure(locks.releaseProjectLock(lease, options));

/** The next event of a type. */
globalThis.next = (type) => new Promise((resolve) => {
  const stop = locks.subscribeAllLockEvents((event) => {
    if (event.type !== type) return;
    stop();
    resolve(event);
  });
});

/** How many events there were of a type. */
globalThis.count = (type) => events.filter((event) => event.type === type).length;

/** The type of an event, and its details that do not vary. */
globalThis.brief = (e) => [
  e.type.replace('lock:', ''), e.strategy, e.code, e.warning, e.reason, e.info?.reason,
  e.retry != null && 'retry=' + e.retry, e.retryable && 'retryable', e.waitMs != null && 'wait=' + e.waitMs,
  e.force && 'force',
].filter(Boolean).join(' ');

/** The Workers that were started and ended. */
globalThis.clocks = { started: 0, ended: 0 };
globalThis.Worker = class extends Worker {
  constructor(...args) { super(...args); clocks.started++; }
  terminate() { clocks.ended++; super.terminate(); }
};

/** Undoes what a script has changed of these. */
globalThis.reset = () => {
  globalThis.fetch = faulty;
  for (const method in faults) delete faults[method];
  events.length = readonly.length = 0;
};
