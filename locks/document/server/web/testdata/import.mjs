import * as locks from 'taskguard-locks';

const { acquireProjectLock, releaseProjectLock, renewProjectLock, subscribeLockEvents, withProjectLock } = locks;
const { WEB_LOCK_TTL_MS, FALLBACK_LOCK_TTL_MS, LOCK_HEARTBEAT_INTERVAL_MS, MAX_LOCK_RETRIES } = locks;
console.log(...Object.keys(locks).sort());
console.log(WEB_LOCK_TTL_MS, FALLBACK_LOCK_TTL_MS, LOCK_HEARTBEAT_INTERVAL_MS, MAX_LOCK_RETRIES);

// An impossible option is refused before anything happens, by its name.
let events = 0;
subscribeLockEvents(() => { events++; });
const named = async (call) => {
  const error = await call().catch((thrown) => thrown);
  return error instanceof TypeError ? error.message.split(' ')[4] : error;
};
for (const option of [
  { ttlMs: 0 }, { ttlMs: -1 }, { ttlMs: NaN }, { ttlMs: '25s' }, { ttlMs: Infinity }, { heartbeatIntervalMs: 0 }, { resource: '-x' }, { resource: '' },
  { resource: 7 }, { preferredStrategy: 'x' }, { preferredStrategy: null }, { retryLimit: 0 }, { retryLimit: 1.5 }, { backoff: 500 },
  { backoff: { initialMs: -1 } }, { backoff: { factor: 0 } }, { backoff: { maxAttempts: 0 } }, { backoffMs: 500 }, { backoffMs: [-1] },
  { onReadonly: 'stop' }, { endpoint: null }, { ownerId: 7 }, { signal: {} },
  { retryLimitt: 3 }, { toString: 1 }, { force: true }, { backoff: { factr: 2 } }, { endpoint: 'nope' }, { endpoint: 'ftp://x/' },
]) {
  const got = await named(() => acquireProjectLock(option));
  const [name, value] = Object.entries(option)[0];
  if (got?.split?.('.')[0] !== name) console.log('acquire', name, value, got);
}
console.log(await named(() => withProjectLock(() => {}, { ttlMs: 0 })), await named(() => renewProjectLock({ leaseId: 'x' }, { ttlMs: 0 })),
  await named(() => releaseProjectLock({ leaseId: 'x' }, { retryLimit: 0 })), events);
console.log(await named(() => acquireProjectLock(null)), await named(() => withProjectLock(() => {}, { ttlMS: 1 })),
  await named(() => renewProjectLock({ leaseId: 'x' }, { ttlMS: 1 })), await named(() => releaseProjectLock({ leaseId: 'x' }, { ttlMS: 1 })));
for (const call of [subscribeLockEvents, locks.subscribeLockTelemetry, withProjectLock]) {
  for (const fn of ['x', null]) {
    const got = await named(async () => call(fn));
    if (typeof got !== 'string') console.log('accepted', fn, got);
  }
}

let reason;
const { code, retryable } = await acquireProjectLock({ onReadonly: (info) => { reason = info.reason; } }).catch((error) => error);
console.log(JSON.stringify([code, retryable, reason, events]));

// A lease that the server refuses to renew is given back before the next acquisition begins.
const requests = [];
let [renewed, slow] = [404, 100];
globalThis.fetch = async (_, { method, credentials }) => {
  requests.push(credentials === 'include' ? method : 'without the cookie'); // of a server of another origin
  if (method === 'DELETE') await new Promise((resolve) => { setTimeout(resolve, slow -= 30); });
  if (method === 'DELETE') requests.push('freed');
  return Response.json({ token: 1, ttl_ms: 30_000 }, { status: method === 'PUT' ? renewed : 200 });
};
const options = { endpoint: 'http://localhost/api/documents' };
const { code: lost } = await renewProjectLock(await acquireProjectLock(options)).catch((error) => error);
await releaseProjectLock(await acquireProjectLock(options));
console.log(lost, ...requests);

// So is one that onReadonly acquires: it is called before the release.
let again;
requests.length = 0;
slow = 200;
const onReadonly = () => { again = acquireProjectLock(options); };
await renewProjectLock(await acquireProjectLock({ ...options, onReadonly })).catch(() => {});
await releaseProjectLock(await again);
console.log(...requests);

// Two that are lost at once are both given back first, and the first request takes longer.
requests.length = 0;
slow = 200;
const both = await Promise.all([acquireProjectLock(options), acquireProjectLock(options)]);
await Promise.allSettled(both.map((lease) => renewProjectLock(lease)));
await releaseProjectLock(await acquireProjectLock(options));
console.log(...requests);

// A listener that renews gets its events after those that are being delivered, as all listeners do.
renewed = 200;
const types = [];
const stops = [
  subscribeLockEvents(({ type, lease }) => { if (type === 'lock:acquired') renewProjectLock(lease); }),
  subscribeLockEvents(({ type }) => { types.push(type.replace('lock:', '')); }),
];
const lease = await acquireProjectLock({ ...options, ttlMs: 2000, retryLimit: 1 });
const { leaseId, strategy, acquiredAt, expiresAt } = lease;
await renewProjectLock({ leaseId, strategy, acquiredAt, expiresAt }); // seed 000's lease
for (const stop of stops) stop();
console.log(...types);

// After a heartbeat that fails late, the next one comes a margin of 400 ms before the end.
renewed = 503;
const now = performance.now.bind(performance);
performance.now = () => now() + 1400;
let due;
subscribeLockEvents((event) => { due = event.nextHeartbeatInMs ?? due; });
await renewProjectLock(lease).catch(() => {});
console.log(due > 0 && due <= 200);
await releaseProjectLock(lease);
