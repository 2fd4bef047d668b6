// @ts-check
/**
 * The project lock in the browser: one editor at a time, over tabs, browsers
 * and machines. One module, no dependencies.
 *
 *   const lease = await acquireProjectLock({ onReadonly: stopSaving });
 *   const { token } = await confirmProjectLock(lease); // right before a write
 *   await releaseProjectLock(lease);
 *
 * A lease is two locks at once. `navigator.locks` keeps out this browser's other
 * tabs; the lease at the server, which ends by itself, keeps out every other
 * browser and frees what a crashed one held. Where Web Locks are missing, there
 * is only the server's lease (strategy `file-lock`, named after the file that it
 * replaces). If either one is refused, the acquisition is refused.
 *
 * Guaranteed:
 * - A lease is trusted for its TTL, or nine tenths of the server's TTL if that is
 *   shorter, from the START of the request that last renewed it, on the monotonic
 *   clock. Then it is read-only, whatever the network does. A lease enters
 *   read-only once, calls `onReadonly`, frees both locks and stays read-only: the
 *   user decides whether to take the lock again.
 * - Each acquisition is another owner to the server: a late request of an earlier
 *   one neither renews nor frees it.
 * - Heartbeats run in a Worker, so that a hidden tab keeps its lease.
 * - A page that is closed frees its lease at once. A page that the browser keeps
 *   for the Back button sends no heartbeats, so it frees its lease too, and is
 *   read-only when it is shown again.
 *
 * Not guaranteed: that no other client writes. A machine that slept may not have
 * counted that time, and a write may be in progress when the lease ends. So
 * confirm right before each write, and let the store compare the lease's token.
 *
 * @typedef {'web-lock' | 'file-lock'} ProjectLockStrategy
 * @typedef {'web-lock-unsupported' | 'acquire-denied' | 'acquire-timeout' | 'fallback-conflict'
 *   | 'lease-stale' | 'renew-failed' | 'release-failed'} ProjectLockErrorCode
 * @typedef {ProjectLockErrorCode} ProjectLockReadonlyReason
 * @typedef {'fallback-degraded' | 'heartbeat-delayed'} ProjectLockWarningKind
 *
 * @typedef {Error & {
 *   readonly code: ProjectLockErrorCode,
 *   readonly retryable: boolean,
 *   readonly cause?: unknown,
 *   readonly context?: Readonly<Record<string, unknown>>,
 * }} ProjectLockError
 *
 * @typedef {object} ProjectLockLease A frozen copy; renewing returns a new one. Its times are for display.
 * @property {string} leaseId
 * @property {ProjectLockStrategy} strategy
 * @property {string} resource
 * @property {string} acquiredAt ISO 8601
 * @property {string} expiresAt ISO 8601: the end of trust in this browser
 * @property {number} ttlMs
 * @property {string} nextHeartbeatAt ISO 8601
 * @property {number} renewAttempt failed attempts before the last renewal
 * @property {boolean} viaFallback
 * @property {number} token fencing token: grows with each acquisition, by anyone
 * @property {string} holder the public name that the server's notifications use
 *
 * @typedef {object} ProjectLockReadonlyInfo
 * @property {ProjectLockReadonlyReason} reason
 * @property {number} retry attempts that failed before the last one
 * @property {string} [leaseId]
 * @property {ProjectLockError} lastError
 *
 * @typedef {(
 *   | { type: 'lock:attempt', strategy: ProjectLockStrategy, retry: number, leaseId?: string }
 *   | { type: 'lock:acquired', lease: ProjectLockLease }
 *   | { type: 'lock:renew-scheduled', lease: ProjectLockLease, nextHeartbeatInMs: number }
 *   | { type: 'lock:renewed', lease: ProjectLockLease, retry: number }
 *   | { type: 'lock:release-requested', lease: ProjectLockLease, force: boolean }
 *   | { type: 'lock:released', leaseId: string, strategy: ProjectLockStrategy, durationMs: number }
 *   | { type: 'lock:release-failed', leaseId: string, retry: number, force: boolean }
 *   | { type: 'lock:readonly-entered', info: ProjectLockReadonlyInfo }
 *   | { type: 'lock:waiting', strategy: ProjectLockStrategy, retry: number, waitMs: number }
 *   | { type: 'lock:error', strategy: ProjectLockStrategy, retry: number,
 *       error: ProjectLockError, code: ProjectLockErrorCode, retryable: boolean }
 *   | { type: 'lock:fallback-engaged', strategy: ProjectLockStrategy, reason: ProjectLockErrorCode }
 *   | { type: 'lock:warning', warning: ProjectLockWarningKind, leaseId?: string, lateMs?: number }
 * )} ProjectLockEvent
 *
 * @typedef {object} AcquireLockOptions
 * @property {AbortSignal} [signal] ends the acquisition, not a lease once held
 * @property {string} [ownerId] of A-Z a-z 0-9 _ -: its first 31 begin the name that the server knows the holder by
 * @property {number} [retryLimit] attempts in each operation, default 3
 * @property {readonly number[]} [backoffMs] waits between them, the last one repeated; default 500, 1000, 2000
 * @property {number} [ttlMs] default 25 s, or 30 s with only the server's lease; the server's TTL if that is shorter
 * @property {number} [heartbeatIntervalMs] default 10 s, at most 2/5 of the TTL
 * @property {ProjectLockStrategy} [preferredStrategy] default `web-lock`
 * @property {(info: ProjectLockReadonlyInfo) => void} [onReadonly]
 * @property {string} [resource] what is locked, default `imgponic:project`
 * @property {string} [endpoint] default `/api/documents`
 *
 * @typedef {AcquireLockOptions} AcquireProjectLockOptions
 * @typedef {{ force?: boolean }} ReleaseLockOptions
 * @typedef {AcquireLockOptions & { releaseOnError?: boolean }} WithLockOptions
 */

const WEB_LOCK_TTL_MS = 25_000;
const FALLBACK_LOCK_TTL_MS = 30_000;
const LOCK_HEARTBEAT_INTERVAL_MS = 10_000;
const SAFETY_MARGIN_MS = 5_000;
const TRUSTED_PART = 0.9; // of the server's TTL: clocks run at different speeds
const MAX_MISSED_HEARTBEATS = 2;

// ---- The exported functions ---------------------------------------

/**
 * Takes the lock, or enters read-only and throws a ProjectLockError. After an abort
 * it releases what it has taken, which takes at most one request's timeout, and
 * throws the signal's reason.
 * @param {AcquireLockOptions} [options] @returns {Promise<ProjectLockLease>}
 */
export async function acquireProjectLock(options = {}) {
  return reading(await acquire(options));
}

/**
 * Renews at once, or joins the renewal in progress; heartbeats renew by themselves.
 * Throws `lease-stale`, or `renew-failed`: then the lease is still held, unless
 * this was the second heartbeat in a row that failed.
 * @param {ProjectLockLease} lease @returns {Promise<ProjectLockLease>}
 */
export async function renewProjectLock(lease) {
  return renew(held(lease));
}

/**
 * Releases both locks. If another has taken the lease, it enters read-only and
 * throws `lease-stale`. For a lease that has already ended it does nothing, but with
 * `force` it asks the server once more, also if the lease is read-only.
 * @param {ProjectLockLease} lease @param {ReleaseLockOptions} [options] @returns {Promise<void>}
 */
export async function releaseProjectLock(lease, { force = false } = {}) {
  const hold = holds.get(lease.leaseId);
  if (!hold) return;
  const released = end(hold, force);
  hold.lost.abort(new DOMException('project lock: released', 'AbortError')); // nothing has been sent yet
  await released;
}

/**
 * Runs fn under the lock. If the lock is lost, fn's signal aborts and
 * withProjectLock throws, whatever fn returns. If the lock is released while fn runs,
 * the signal aborts first and fn's result counts. With `releaseOnError: false` an
 * error of fn leaves the lock held; the caller releases it.
 * @template T
 * @param {(lease: ProjectLockLease, lost: AbortSignal) => Promise<T> | T} fn
 * @param {WithLockOptions} [options] @returns {Promise<T>}
 */
export async function withProjectLock(fn, { releaseOnError = true, ...options } = {}) {
  const hold = await acquire(options);
  const lease = reading(hold);
  let result;
  try {
    result = await fn(lease, hold.lost.signal);
    if (hold.loss) throw hold.loss;
  } catch (error) {
    // fn's error is thrown; an event has reported a failed release.
    if (releaseOnError) await end(hold).catch(() => {});
    throw error;
  }
  await end(hold);
  return result;
}

/**
 * Calls listener with each event from now on, in order. Returns a function that
 * ends this and may be called again.
 * @param {(event: ProjectLockEvent) => void} listener @returns {() => void}
 */
export function subscribeLockEvents(listener) {
  const subscription = { listener };
  subscriptions.add(subscription);
  return () => { subscriptions.delete(subscription); };
}

/**
 * Asks the server, right before a write, whether the lease is held. If it is not,
 * enters read-only and throws `lease-stale`. If the server cannot be asked, throws
 * `renew-failed`: then do not write, and try again.
 * @param {ProjectLockLease} lease
 * @returns {Promise<{ token: number, validForMs: number }>} how long from now the lease can be trusted
 */
export async function confirmProjectLock(lease) {
  const hold = held(lease);
  const answer = await must(hold, 'confirm', { path: `/confirm?token=${hold.token}` })
    .catch((error) => { throw error.code === 'lease-stale' ? enterReadonly(hold, error) : error; });
  held(lease); // still, after that time
  const validForMs = answer.body.valid_for_ms - (performance.now() - answer.asked);
  if (!(validForMs > 0)) throw lockError('renew-failed', { context: { validForMs } });
  return { token: hold.token, validForMs };
}

// ---- States -----------------------------------------------------------------

/** @typedef {keyof typeof MOVES} State */

/** All transitions. Others are ignored: so read-only is entered once. */
const MOVES = {
  Idle: ['AcquireWebLock', 'AcquireFileLock'],
  AcquireWebLock: ['ActiveWebLock', 'AcquireFileLock', 'Readonly', 'Idle'],
  AcquireFileLock: ['ActiveFileLock', 'Readonly', 'Idle'],
  ActiveWebLock: ['HeartbeatQueued', 'Releasing', 'Readonly', 'Idle'],
  ActiveFileLock: ['HeartbeatQueued', 'Releasing', 'Readonly', 'Idle'],
  HeartbeatQueued: ['Renewing', 'Releasing', 'Readonly', 'Idle'],
  Renewing: ['ActiveWebLock', 'ActiveFileLock', 'HeartbeatQueued', 'Releasing', 'Readonly', 'Idle'],
  Releasing: ['Readonly', 'Idle'],
  Readonly: ['Releasing', 'Idle'],
};

/** @param {Hold} hold @param {State} to */
function move(hold, to) {
  const allowed = /** @type {State[]} */ (MOVES[hold.state]).includes(to);
  if (allowed) hold.state = to;
  return allowed;
}

/** @param {Hold} hold @param {'Acquire' | 'Active'} phase @returns {State} */
const at = (hold, phase) => (hold.strategy === 'web-lock' ? `${phase}WebLock` : `${phase}FileLock`);

/** @typedef {ReturnType<typeof newHold>} Hold The state of one acquisition. */

/** @type {Map<string, Hold>} by lease id: from the acquisition's start to Idle */
const holds = new Map();
/** @type {Map<string, Promise<unknown>>} releases in progress after a loss or an abort */
const givingBack = new Map();
/** @type {Set<{ listener: (event: ProjectLockEvent) => void }>} */
const subscriptions = new Set();
/** @type {ProjectLockEvent[]} events to deliver; the first one is being delivered */
const queue = [];

/** @param {AcquireLockOptions} options */
function newHold(options) {
  const { resource = 'imgponic:project', endpoint = '/api/documents', ownerId } = options;
  const { retryLimit = 3, backoffMs = [500, 1000, 2000], preferredStrategy = 'web-lock' } = options;
  const leaseId = randomId();
  return {
    options, resource, leaseId, retryLimit, backoffMs,
    owner: ownerId ? `${ownerId.slice(0, 31)}-${leaseId}` : leaseId,
    url: `${endpoint}/${encodeURIComponent(resource)}/lock`,
    strategy: preferredStrategy,
    viaFallback: false,
    state: /** @type {State} */ ('Idle'),
    token: 0,
    holder: '',
    ttlMs: 0,
    acquiredAt: '',
    acquired: NaN, deadline: NaN, due: NaN, // on performance.now()'s clock, in ms
    retry: 0, // failures before the attempt under way
    missed: 0, // heartbeats in a row that failed with all their attempts
    doubtful: false, // the outcome of a POST is unknown
    announced: /** @type {ProjectLockError | null} */ (null), // the last lock:error
    loss: /** @type {ProjectLockError | null} */ (null), // ended the trust
    lost: new AbortController(), // of withProjectLock's fn
    renewing: /** @type {Promise<ProjectLockLease> | null} */ (null),
    releasing: /** @type {Promise<void> | null} */ (null),
    letGo: () => {}, // of this browser's lock
    disarm: () => {}, // the heartbeat and the watchdog
  };
}

/** @param {Hold} hold @returns {ProjectLockLease} */
function reading(hold) {
  const wall = Date.now() - performance.now();
  const iso = (/** @type {number} */ ms) => new Date(wall + ms).toISOString();
  const { leaseId, strategy, resource, acquiredAt, ttlMs, viaFallback, token, holder } = hold;
  return Object.freeze({
    leaseId, strategy, resource, acquiredAt, ttlMs, viaFallback, token, holder,
    expiresAt: iso(hold.deadline), nextHeartbeatAt: iso(hold.due), renewAttempt: hold.retry,
  });
}

/** Returns the hold of a lease that can still be trusted. @param {ProjectLockLease} lease */
function held(lease) {
  const hold = holds.get(lease.leaseId);
  if (!hold || hold.state === 'Releasing') throw lockError('lease-stale', { context: { leaseId: lease.leaseId } });
  if (hold.state === 'Readonly') throw hold.loss;
  if (performance.now() >= hold.deadline) throw expire(hold);
  return hold;
}

/** Ends a hold in this browser, without a request. @param {Hold} hold */
function close(hold) {
  hold.disarm();
  hold.letGo();
  hold.disarm = hold.letGo = () => {};
  if (hold.state !== 'Readonly' || Number.isNaN(hold.acquired)) holds.delete(hold.leaseId);
  if ([...holds.values()].some((other) => other.state !== 'Readonly')) return;
  clock?.terminate();
  clock = null;
}

/** Ends the trust in a hold, and returns the error that ended it first. @param {Hold} hold @param {ProjectLockError} error */
function enterReadonly(hold, error) {
  if (!move(hold, 'Readonly')) return hold.loss ?? error;
  const had = !Number.isNaN(hold.acquired);
  hold.loss = error;
  close(hold);
  hold.lost.abort(error);
  const info = { reason: error.code, retry: hold.retry, lastError: error, ...(had && { leaseId: hold.leaseId }) };
  guarded(() => hold.options.onReadonly?.(info));
  if (error !== hold.announced) announce(hold, error);
  emit({ type: 'lock:readonly-entered', info });
  if (had ? error.code !== 'release-failed' : hold.doubtful) giveBack(hold);
  return error;
}

/** @param {Hold} hold @param {ProjectLockError} error */
function announce(hold, error) {
  const { strategy, retry } = hold;
  emit({ type: 'lock:error', strategy, retry, error, code: error.code, retryable: error.retryable });
  hold.announced = error;
}

/** Throws the error that ended the hold, unless it is still in that state. @param {Hold} hold @param {State} state */
function stay(hold, state) {
  if (hold.state !== state) throw hold.loss ?? lockError('lease-stale');
}

/** @param {Hold} hold */
function expire(hold) {
  return enterReadonly(hold, lockError('lease-stale', { context: { ttlMs: hold.ttlMs } }));
}

// ---- Acquire, renew, release ------------------------------------------------

/** @param {AcquireLockOptions} options */
async function acquire(options) {
  const hold = newHold(options);
  const { signal } = options;
  signal?.throwIfAborted();
  do await givingBack.get(hold.url); while (givingBack.has(hold.url)); // onReadonly is called before the release
  for (const old of holds.values()) if (old.url === hold.url && old.state === 'Readonly') reset(old);
  holds.set(hold.leaseId, hold);
  move(hold, at(hold, 'Acquire'));
  try {
    await attempts(hold, () => take(hold)).catch((error) => {
      signal?.throwIfAborted();
      if (error.code !== 'web-lock-unsupported') throw error;
      fallBack(hold, error);
      return attempts(hold, () => take(hold));
    });
  } catch (error) {
    if (!signal?.aborted && isLockError(error) && hold.state !== 'Readonly') throw enterReadonly(hold, error);
    move(hold, 'Idle'); // aborted, or lost before the answer arrived
    if (hold.doubtful) await giveBack(hold);
    close(hold);
    throw error;
  }
  stay(hold, at(hold, 'Acquire')); // not stolen meanwhile
  hold.acquired = performance.now();
  hold.acquiredAt = new Date().toISOString();
  move(hold, at(hold, 'Active'));
  schedule(hold, (lease) => [{ type: 'lock:acquired', lease }]);
  return hold;
}

/** One attempt at both locks. @param {Hold} hold */
async function take(hold) {
  if (hold.strategy === 'web-lock' && !('locks' in navigator)) throw lockError('web-lock-unsupported');
  try {
    if (hold.strategy === 'web-lock') await takeWebLock(hold);
    hold.options.signal?.throwIfAborted();
    stay(hold, at(hold, 'Acquire'));
    hold.doubtful = true;
    const answer = await must(hold, 'acquire').catch((error) => {
      hold.doubtful = error.code === 'acquire-timeout';
      throw error;
    });
    hold.options.signal?.throwIfAborted();
    hold.token = answer.body.token;
    hold.holder = answer.body.holder;
    trust(hold, answer);
  } catch (error) {
    hold.letGo();
    throw error;
  }
}

/** Takes this browser's lock if it is free, and holds it until letGo. @param {Hold} hold @returns {Promise<void>} */
function takeWebLock(hold) {
  return new Promise((taken, refused) => {
    let [waiting, had] = [true, false];
    const cancel = alarm(timings(hold).requestMs, () => {
      waiting = false;
      refused(lockError('acquire-timeout'));
    });
    navigator.locks.request(hold.resource, { mode: 'exclusive', ifAvailable: true }, (lock) => {
      cancel();
      if (!lock) refused(refusal(hold.strategy, { by: 'this browser' }));
      if (!lock || !waiting) return undefined;
      had = true;
      taken();
      return new Promise((done) => { hold.letGo = () => done(undefined); });
    }).catch((cause) => {
      cancel();
      if (had) enterReadonly(hold, lockError('lease-stale', { cause })); // stolen
      else refused(lockError('web-lock-unsupported', { cause })); // forbidden, as in a sandboxed frame
    });
  });
}

/** @param {Hold} hold @param {ProjectLockError} error */
function fallBack(hold, error) {
  hold.strategy = 'file-lock';
  hold.viaFallback = true;
  move(hold, 'AcquireFileLock');
  emit({ type: 'lock:waiting', strategy: hold.strategy, retry: 0, waitMs: 0 });
  emit({ type: 'lock:fallback-engaged', strategy: hold.strategy, reason: error.code });
}

/** @param {Hold} hold @returns {Promise<ProjectLockLease>} */
function renew(hold) {
  return (hold.renewing ??= renewNow(hold).finally(() => { hold.renewing = null; }));
}

/** @param {Hold} hold */
async function renewNow(hold) {
  move(hold, 'Renewing');
  try {
    trust(hold, await attempts(hold, () => must(hold, 'renew', { timeoutMs: timings(hold).renewMs })));
  } catch (/** @type {any} */ error) {
    if (hold.state !== 'Renewing') throw hold.loss ?? error;
    hold.missed++;
    if (error.code !== 'renew-failed' || hold.missed >= MAX_MISSED_HEARTBEATS) throw enterReadonly(hold, error);
    schedule(hold);
    throw error;
  }
  hold.missed = 0;
  move(hold, at(hold, 'Active'));
  return schedule(hold, (lease) => [{ type: 'lock:renewed', lease, retry: hold.retry }]);
}

/** Releases a hold that has not ended, or joins the release in progress. @param {Hold} hold @param {boolean} [force] */
async function end(hold, force = false) {
  if (hold.state === 'Idle' || (hold.state === 'Readonly' && !force)) return;
  await (hold.releasing ??= release(hold, force).finally(() => { hold.releasing = null; }));
}

/** @param {Hold} hold @param {boolean} force */
async function release(hold, force) {
  const before = hold.state;
  hold.disarm();
  move(hold, 'Releasing');
  await null; // until `releasing` is set: a listener may call release too
  stay(hold, 'Releasing');
  emit({ type: 'lock:release-requested', lease: reading(hold), force });
  try {
    await attempts(hold, () => must(hold, 'release').catch((error) => {
      // Released by an attempt whose answer was lost; with force, that is success.
      if (error.code !== 'lease-stale' || !(hold.retry || force)) throw error;
    }), force);
  } catch (/** @type {any} */ error) {
    if (before !== 'Readonly') throw enterReadonly(hold, error);
    move(hold, before); // its event has been emitted
    throw error;
  }
  const durationMs = Math.round(performance.now() - hold.acquired);
  reset(hold);
  emit({ type: 'lock:released', leaseId: hold.leaseId, strategy: hold.strategy, durationMs });
}

/** @param {Hold} hold */
function reset(hold) {
  move(hold, 'Idle');
  close(hold);
}

/** Releases the server's lease once, ignoring errors. @param {Hold} hold */
function giveBack(hold) {
  const asked = ask(hold, 'DELETE', { keepalive: true }).catch(() => {});
  const done = Promise.all([asked, givingBack.get(hold.url)]).then(() => {
    if (givingBack.get(hold.url) === done) givingBack.delete(hold.url);
  });
  givingBack.set(hold.url, done);
  return done;
}

/**
 * Makes up to retryLimit attempts with waits between them, and emits an event for
 * each attempt and each failure, until the hold changes its state.
 * @template T @param {Hold} hold @param {() => Promise<T>} attempt @param {boolean} [force] @returns {Promise<T>}
 */
async function attempts(hold, attempt, force = false) {
  const { state, strategy } = hold;
  const leaseId = Number.isNaN(hold.acquired) ? undefined : hold.leaseId;
  const signal = leaseId ? undefined : hold.options.signal;
  for (hold.retry = 0; ; hold.retry++) {
    const { retry } = hold;
    emit({ type: 'lock:attempt', strategy, retry, ...(leaseId && { leaseId }) });
    let failure;
    try {
      const result = await attempt();
      if (hold.state === state) return result;
    } catch (error) {
      failure = error;
    }
    stay(hold, state);
    signal?.throwIfAborted(); // the reason may be another lock's error
    if (!isLockError(failure)) throw failure;
    const last = retry + 1 >= hold.retryLimit;
    const error = force || (last && ENDS_AT_THE_LIMIT.has(failure.code)) ? final(failure) : failure;
    if (error.code === 'fallback-conflict') emit({ type: 'lock:warning', warning: 'fallback-degraded' });
    if (error.code === 'release-failed') emit({ type: 'lock:release-failed', leaseId: hold.leaseId, retry, force });
    announce(hold, error);
    if (last || !error.retryable) throw error;
    const waitMs = hold.backoffMs[Math.min(retry, hold.backoffMs.length - 1)] ?? 0;
    emit({ type: 'lock:waiting', strategy, retry, waitMs });
    await pause(waitMs, signal);
    stay(hold, state);
  }
}

// ---- Time ---------------------------------------------------------------------

/** @param {Hold} hold */
const wantedTtlMs = ({ options, strategy }) =>
  options.ttlMs ?? (strategy === 'web-lock' ? WEB_LOCK_TTL_MS : FALLBACK_LOCK_TTL_MS);

/** Computes the time limits from the TTL: two heartbeats fit. @param {Hold} hold */
function timings(hold) {
  const ttlMs = hold.ttlMs || wantedTtlMs(hold);
  const heartbeatMs = Math.min(hold.options.heartbeatIntervalMs ?? LOCK_HEARTBEAT_INTERVAL_MS, ttlMs * 0.4);
  const marginMs = Math.min(SAFETY_MARGIN_MS, ttlMs / 5);
  return { heartbeatMs, marginMs, requestMs: heartbeatMs / 2, renewMs: heartbeatMs / 4 };
}

/** Trusts an answer from the time before its request was sent. @param {Hold} hold @param {Answer} answer */
function trust(hold, { asked, body: { ttl_ms: theirs = FALLBACK_LOCK_TTL_MS } }) {
  hold.ttlMs = Math.min(wantedTtlMs(hold), theirs);
  hold.deadline = asked + Math.min(hold.ttlMs, theirs * TRUSTED_PART);
}

/**
 * Schedules the next heartbeat: ten seconds from now, or a margin before the end.
 * Emits the events of `before` first, when all is in place, so that a listener may renew.
 * @param {Hold} hold @param {(lease: ProjectLockLease) => ProjectLockEvent[]} [before]
 */
function schedule(hold, before = () => []) {
  move(hold, 'HeartbeatQueued');
  const now = performance.now();
  const { heartbeatMs, marginMs } = timings(hold);
  hold.due = Math.max(now, Math.min(now + heartbeatMs, hold.deadline - marginMs));
  hold.disarm();
  const heartbeat = alarm(hold.due - now, () => beat(hold));
  const watchdog = alarm(hold.deadline - now, () => expire(hold));
  hold.disarm = () => { heartbeat(); watchdog(); };
  const lease = reading(hold);
  emit(...before(lease), { type: 'lock:renew-scheduled', lease, nextHeartbeatInMs: Math.round(hold.due - now) });
  return lease;
}

/** @param {Hold} hold */
function beat(hold) {
  const now = performance.now();
  if (now >= hold.deadline) return void expire(hold);
  const lateMs = Math.round(now - hold.due);
  if (lateMs > timings(hold).heartbeatMs) {
    emit({ type: 'lock:warning', warning: 'heartbeat-delayed', leaseId: hold.leaseId, lateMs });
  }
  renew(hold).catch(() => {}); // an event reports it
}

/** @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => { cancel(); reject(signal?.reason); };
    const cancel = alarm(ms, () => { signal?.removeEventListener('abort', stop); resolve(); });
    signal?.addEventListener('abort', stop, { once: true });
    if (signal?.aborted) stop();
  });
}

const CLOCK = 'project-lock-clock';
/** @type {Worker | null} */
let clock = null;
let alarms = 0;
/** @type {Map<number, () => void>} */
const ringing = new Map();

/**
 * Calls fn once, after ms, unless the returned function cancels it. The first of two
 * timers counts: browsers delay a hidden page's own timers by up to a minute, but
 * not a Worker's; if the Worker cannot start, the page's timer remains.
 * @param {number} ms @param {() => void} fn @returns {() => void}
 */
function alarm(ms, fn) {
  const id = ++alarms;
  const timer = setTimeout(ring, ms);
  ringing.set(id, ring);
  clock ??= startClock();
  clock?.postMessage({ id, ms });
  function cancel() {
    clearTimeout(timer);
    if (ringing.delete(id)) clock?.postMessage({ id });
  }
  function ring() { cancel(); fn(); }
  return cancel;
}

function startClock() {
  try {
    // @ts-ignore: some settings of the type checker do not know import.meta
    const worker = new Worker(import.meta.url, { type: 'module', name: CLOCK });
    worker.onmessage = ({ data }) => ringing.get(data)?.();
    worker.onerror = (event) => event.preventDefault(); // the page's timers run
    return worker;
  } catch {
    return null;
  }
}

/** Runs this file as that Worker. */
function runClock() {
  /** @type {Map<number, ReturnType<typeof setTimeout>>} */
  const timers = new Map();
  self.onmessage = ({ data: { id, ms } }) => {
    clearTimeout(timers.get(id));
    timers.delete(id);
    if (ms === undefined) return;
    timers.set(id, setTimeout(() => { timers.delete(id); self.postMessage(id); }, ms));
  };
}

// ---- The server, errors, events -------------------------------------------------

/** @typedef {{ status: number, body: any, asked: number }} Answer asked: when, on performance.now()'s clock */

/** @typedef {{ path?: string, keepalive?: boolean, timeoutMs?: number }} Asking */

/** @param {Hold} hold @param {string} method @param {Asking} [asking] @returns {Promise<Answer>} */
async function ask(hold, method, { path = '', keepalive = false, timeoutMs = timings(hold).requestMs } = {}) {
  const asked = performance.now();
  const response = await fetch(hold.url + path, {
    method, keepalive, cache: 'no-store',
    headers: { 'X-Lock-Client': hold.owner }, signal: AbortSignal.timeout(timeoutMs),
  });
  const body = await response.json().catch((error) => { if (response.ok) throw error; return {}; });
  return { status: response.status, body, asked };
}

/** Each operation's method, and its error if the server cannot be asked. */
const OPERATIONS = /** @type {const} */ ({
  acquire: { method: 'POST', failed: 'acquire-timeout' },
  renew: { method: 'PUT', failed: 'renew-failed' },
  confirm: { method: 'GET', failed: 'renew-failed' },
  release: { method: 'DELETE', failed: 'release-failed' },
});

/** @typedef {keyof typeof OPERATIONS} Operation */

/** Sends the request of an operation, and throws its error. @param {Hold} hold @param {Operation} operation @param {Asking} [asking] */
async function must(hold, operation, asking) {
  const { method, failed } = OPERATIONS[operation];
  const once = () => ask(hold, method, asking).catch((cause) => { throw lockError(failed, { cause }); });
  let answer = await once();
  // The server has deleted the invalid cookie: a POST without one begins a session.
  if (operation === 'acquire' && answer.body.error === 'invalid_session') answer = await once();
  const error = meaning(operation, hold.strategy, answer);
  if (error) throw error;
  return answer;
}

/** Returns the error of an answer, or null. @param {Operation} operation @param {ProjectLockStrategy} strategy @param {Answer} answer */
function meaning(operation, strategy, { status, body }) {
  if (status >= 200 && status < 300) {
    return body.released === false ? lockError('lease-stale', { context: { status } }) : null;
  }
  const context = { status, error: body.error };
  const passing = status >= 500 || status === 408 || status === 429;
  const gone = body.error === 'not_locked_by_user' || body.error === 'lock_not_found';
  if (passing || (operation === 'release' && !gone)) {
    return lockError(OPERATIONS[operation].failed, { context, retryable: status !== 401 });
  }
  if (operation !== 'acquire') return lockError('lease-stale', { context });
  return status === 409 ? refusal(strategy, context) : lockError('acquire-denied', { context, retryable: false });
}

const NEVER_RETRYABLE = new Set(['web-lock-unsupported', 'lease-stale']);
const ENDS_AT_THE_LIMIT = new Set(['acquire-denied', 'acquire-timeout', 'fallback-conflict']);

/** @typedef {{ cause?: unknown, context?: Record<string, unknown>, retryable?: boolean }} Details */

/** @param {ProjectLockErrorCode} code @param {Details} [details] @returns {ProjectLockError} */
function lockError(code, { cause, context = {}, retryable = !NEVER_RETRYABLE.has(code) } = {}) {
  const error = new Error(`project lock: ${code}`, { cause });
  return Object.assign(error, { name: 'ProjectLockError', code, retryable, context });
}

/** @param {ProjectLockStrategy} strategy @param {Record<string, unknown>} context */
const refusal = (strategy, context) =>
  lockError(strategy === 'web-lock' ? 'acquire-denied' : 'fallback-conflict', { context });

/** @param {ProjectLockError} error */
const final = (error) => lockError(error.code, { ...error, cause: error.cause, retryable: false });

/** @param {any} error @returns {error is ProjectLockError} */
const isLockError = (error) => error?.name === 'ProjectLockError';

/** Delivers events to all listeners. Events that a listener causes come after them. @param {ProjectLockEvent[]} events */
function emit(...events) {
  const delivering = queue.length > 0;
  queue.push(...events);
  for (; !delivering && queue.length > 0; queue.shift()) {
    const event = Object.freeze(queue[0]);
    for (const subscription of [...subscriptions]) {
      if (subscriptions.has(subscription)) guarded(() => subscription.listener(event));
    }
  }
}

/** Reports an error of the page's own function to the page. @param {() => void} call */
function guarded(call) {
  try { call(); } catch (error) { reportError(error); }
}

/** Not randomUUID, which pages without TLS do not have. */
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** @param {PageTransitionEvent} event */
function leave(event) {
  for (const hold of [...holds.values()]) {
    if (hold.state === 'Readonly') continue;
    if (event.persisted) { expire(hold); continue; }
    giveBack(hold); // before the browser's lock: its next holder asks the server next
    reset(hold);
  }
}

if (typeof document !== 'undefined') addEventListener('pagehide', leave);
else if (self.name === CLOCK) runClock();
