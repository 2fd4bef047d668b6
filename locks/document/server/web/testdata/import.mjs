import * as locks from 'taskguard-locks';

const { acquireProjectLock, releaseProjectLock, renewProjectLock, subscribeAllLockEvents, subscribeLockEvents } = locks;
const { WEB_LOCK_TTL_MS, FALLBACK_LOCK_TTL_MS, LOCK_HEARTBEAT_INTERVAL_MS, MAX_LOCK_RETRIES } = locks;
console.log(...Object.keys(locks).sort());
console.log(WEB_LOCK_TTL_MS, FALLBACK_LOCK_TTL_MS, LOCK_HEARTBEAT_INTERVAL_MS, MAX_LOCK_RETRIES);

let [events, all] = [0, 0];
subscribeLockEvents(() => { events++; });
subscribeAllLockEvents(() => { all++; });
let reason;
const { code, retryable } = await acquireProjectLock({ onReadonly: (info) => { reason = info.reason; } }).catch((error) => error);
console.log(JSON.stringify([code, retryable, reason, events, all]));

// A lease that the server refuses to renew is given back before the next acquisition begins.
const requests = [];
globalThis.fetch = async (_, { method, credentials }) => {
  requests.push(credentials === 'include' ? method : 'without the cookie'); // of a server of another origin
  if (method === 'DELETE') await new Promise((resolve) => { setTimeout(resolve, 100); });
  if (method === 'DELETE') requests.push('freed');
  return Response.json({ token: 1, ttl_ms: 30_000 }, { status: method === 'PUT' ? 404 : 200 });
};
const options = { endpoint: 'http://localhost/api/documents' };
const { code: lost } = await renewProjectLock(await acquireProjectLock(options)).catch((error) => error);
await releaseProjectLock(await acquireProjectLock(options));
console.log(lost, ...requests);

// So is one that onReadonly acquires: it is called before the release.
let again;
requests.length = 0;
const onReadonly = () => { again = acquireProjectLock(options); };
await renewProjectLock(await acquireProjectLock({ ...options, onReadonly })).catch(() => {});
await releaseProjectLock(await again);
console.log(...requests);
