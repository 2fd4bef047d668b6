// @ts-check
/**
 * The project lock in the browser: one editor at a time, over tabs and, with a
 * server, over browsers and machines. One module, no dependencies.
 *
 *   const lease = await acquireProjectLock({ onReadonly: stopSaving });
 *   const { token } = await confirmProjectLock(lease); // right before a write
 *   await releaseProjectLock(lease);
 *
 * Without an `endpoint` the lease is a Web Lock of `navigator.locks` (strategy
 * `web-lock`). Where Web Locks are missing, it is the file `project/.lock` in the
 * origin private file system (strategy `file-lock`), which another tab can take when
 * its time of modification is one TTL past. A Web Lock that another tab holds is
 * refused: there is no fallback to the file. With an `endpoint`, a lease is two locks
 * at once: the Web Lock keeps out this browser's other tabs; the lease at the server,
 * which ends by itself, keeps out every other browser and frees what a crashed one
 * held. Where Web Locks are missing, the server's lease replaces the file. If either
 * one is refused, the acquisition is refused. The doclock server's own copy of this
 * module has that server as its default endpoint.
 *
 * Guaranteed:
 * - A lease is trusted for its TTL, or nine tenths of the server's TTL if that is
 *   shorter, from the START of the request that last renewed it, on the monotonic
 *   clock; a lease of the file for nine tenths of its TTL. Then it is read-only,
 *   whatever the network does. A lease enters
 *   read-only once, calls `onReadonly`, frees both locks and stays read-only: the
 *   user decides whether to take the lock again.
 * - Each acquisition is another owner to the server and in the file: a late request of an earlier
 *   one neither renews nor frees it.
 * - Heartbeats run in a Worker, so that a hidden tab keeps its lease.
 * - A page that is closed frees its lease at once. A page that the browser keeps
 *   for the Back button sends no heartbeats, so it frees its lease too, and is
 *   read-only when it is shown again.
 *
 * Not guaranteed: that no other client writes. A machine that slept may not have
 * counted that time, and a write may be in progress when the lease ends. So
 * confirm right before each write, and let the store compare the lease's token, which
 * without a server is the time of the acquisition. Nor that a tab without Web Locks
 * sees the Web Lock of another tab of the same browser.
 */

// The browser's own types, or their parts that are used here where the compiler has no lib `dom`.
/** @typedef {typeof globalThis extends { AbortSignal: { prototype: infer T } } ? T
 *   : { readonly aborted: boolean, readonly reason: any, throwIfAborted(): void }} LockAbortSignal */
/** @typedef {{ signal?: LockAbortSignal }} Abortable */
/** @typedef {typeof globalThis extends { AbortController: { prototype: infer T } } ? T
 *   : { readonly signal: LockAbortSignal, abort(reason?: any): void }} LockAbortController */
/** @typedef {typeof globalThis extends { EventTarget: { prototype: infer T } } ? T : {}} LockEventTarget */
/** @template E @typedef {typeof globalThis extends { CustomEvent: { prototype: infer T } }
 *   ? Omit<T, 'detail'> & { readonly detail: E } : { readonly type: string, readonly detail: E }} LockCustomEvent */

/** @typedef {'web-lock' | 'file-lock'} ProjectLockStrategy */
/** @typedef {'web-lock-unsupported' | 'acquire-denied' | 'acquire-timeout' | 'fallback-conflict'
 *   | 'lease-stale' | 'renew-failed' | 'release-failed'} ProjectLockErrorCode */
/** @typedef {ProjectLockErrorCode} ProjectLockReadonlyReason */
/** @typedef {'fallback-degraded' | 'heartbeat-delayed'} ProjectLockWarningKind */
/** @typedef {Error & {
 *   readonly code: ProjectLockErrorCode,
 *   readonly retryable: boolean,
 *   readonly cause?: unknown,
 *   readonly context?: Readonly<Record<string, unknown>>,
 * }} ProjectLockError */
/** @typedef {object} ProjectLockLease A frozen copy; renewing returns a new one. Its times are for display.
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
 * @property {string} holder the public name that the server's notifications use; without a server the ownerId
 * @property {string} client the X-Lock-Client of its requests, for an application that confirms the lock itself */
/** @typedef {object} ProjectLockReadonlyInfo
 * @property {ProjectLockReadonlyReason} reason
 * @property {number} retry attempts that failed before the last one
 * @property {string} [leaseId]
 * @property {ProjectLockError} lastError */
/** A lease of any version of these types. Its leaseId counts.
 * @typedef {Readonly<Pick<ProjectLockLease, 'leaseId'> & Partial<ProjectLockLease>>} HeldLease */
/** @typedef {(
 *   | { type: 'lock:attempt', strategy: ProjectLockStrategy, retry: number, leaseId?: string }
 *   | { type: 'lock:acquired', lease: ProjectLockLease }
 *   | { type: 'lock:renew-scheduled', lease: ProjectLockLease, nextHeartbeatInMs: number }
 *   | { type: 'lock:renewed', lease: ProjectLockLease, retry: number }
 *   | { type: 'lock:release-requested', lease: ProjectLockLease, force: boolean }
 *   | { type: 'lock:released', leaseId: string, strategy: ProjectLockStrategy, durationMs: number }
 *   | { type: 'lock:readonly-entered', info: ProjectLockReadonlyInfo }
 * )} ProjectLockStateEvent the events of seed 000 */
/** @typedef {(
 *   | ProjectLockStateEvent
 *   | { type: 'lock:release-failed', leaseId: string, retry: number, force: boolean }
 *   | { type: 'lock:waiting', strategy: ProjectLockStrategy, retry: number, waitMs: number }
 *   | { type: 'lock:error', strategy: ProjectLockStrategy, retry: number,
 *       error: ProjectLockError, code: ProjectLockErrorCode, retryable: boolean }
 *   | { type: 'lock:fallback-engaged', strategy: ProjectLockStrategy, reason: ProjectLockErrorCode }
 *   | { type: 'lock:warning', warning: ProjectLockWarningKind, leaseId?: string, lateMs?: number }
 * )} ProjectLockEvent each event: seed 001 adds errors, waits, warnings and the fallback */
/** @typedef {object} ProjectLockBackoff Waits between attempts: 500 ms, then twice as long each time, at most 4 s.
 * @property {number} [initialMs] default 500
 * @property {number} [factor] default 2
 * @property {number} [maxAttempts] default 3 */
/** @typedef {object} AcquireLockOptions
 * @property {Abortable['signal']} [signal] ends the acquisition, not a lease once held
 * @property {string} [ownerId] its first 31 characters begin the name that the server knows the holder
 *   by, with - instead of all but A-Z a-z 0-9 _ -; default the origin and a random name of the tab
 * @property {number} [retryLimit] attempts in each operation, instead of backoff.maxAttempts
 * @property {ProjectLockBackoff} [backoff]
 * @property {readonly number[]} [backoffMs] the waits themselves, the last one repeated, instead of those of
 *   `backoff`; n waits mean n + 1 attempts, unless retryLimit or backoff.maxAttempts says how many
 * @property {number} [ttlMs] default 25 s, or 30 s without a Web Lock; the server's TTL if that is shorter
 * @property {number} [heartbeatIntervalMs] default 10 s, at most 2/5 of the TTL
 * @property {ProjectLockStrategy} [preferredStrategy] default `web-lock`
 * @property {(info: ProjectLockReadonlyInfo) => void} [onReadonly]
 * @property {string} [resource] what is locked, default `imgponic:project`
 * @property {string} [endpoint] of the server, as `/api/documents` or `https://…`; empty: no server */
/** @typedef {Pick<AcquireLockOptions, 'signal' | 'retryLimit' | 'backoff' | 'backoffMs'>} RetryOptions */
/** @typedef {RetryOptions & Pick<AcquireLockOptions, 'ttlMs'>} RenewLockOptions */
/** @typedef {RetryOptions & { force?: boolean }} ReleaseLockOptions */
/** @typedef {AcquireLockOptions & { releaseOnError?: boolean }} WithLockOptions */
/** @typedef {AcquireLockOptions} AcquireProjectLockOptions */
/** @typedef {RenewLockOptions} RenewProjectLockOptions */
/** @typedef {ReleaseLockOptions} ReleaseProjectLockOptions */
/** @typedef {WithLockOptions} WithProjectLockOptions */
/** @typedef {{ [E in ProjectLockEvent as E['type']]: LockCustomEvent<E> } & {
 *   'autosave.lock.readonly': LockCustomEvent<Extract<ProjectLockEvent, { type: 'lock:readonly-entered' }>>,
 * }} ProjectLockEventMap */
/** @typedef {<T extends keyof ProjectLockEventMap>(type: T,
 *   listener: (event: ProjectLockEventMap[T]) => void,
 *   options?: boolean | { capture?: boolean, once?: boolean, passive?: boolean, signal?: LockAbortSignal }) => void} Listening */
/** @typedef {Pick<typeof import('./locks.js'), 'acquireProjectLock' | 'renewProjectLock' | 'releaseProjectLock'
 *   | 'withProjectLock' | 'subscribeLockEvents'>} ProjectLockApi */

export const WEB_LOCK_TTL_MS = 25_000;
export const FALLBACK_LOCK_TTL_MS = 30_000;
export const LOCK_HEARTBEAT_INTERVAL_MS = 10_000;
export const MAX_LOCK_RETRIES = 3;
const MAX_BACKOFF_MS = 4_000;
const SAFETY_MARGIN_MS = 5_000;
const TRUSTED_PART = 0.9; // of the server's TTL: clocks run at different speeds
const MAX_MISSED_HEARTBEATS = 2;
const READONLY_ALIAS = 'autosave.lock.readonly';
/** The doclock server adds a line to its copy that sets the endpoint. */
const defaults = { endpoint: '' };

// ---- The exported functions ---------------------------------------

/**
 * Takes the lock, or enters read-only and throws a ProjectLockError. Before that it throws a
 * TypeError that names an unknown option or one with an impossible value, as all functions do. After an abort
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
 * this was the second heartbeat in a row that failed. The options count for the
 * heartbeats from then on too. An abort ends only the wait for the renewal.
 * @param {HeldLease} lease @param {RenewLockOptions} [options] @returns {Promise<ProjectLockLease>}
 */
export async function renewProjectLock(lease, { signal, ...changed } = {}) {
  checkOptions({ signal, ...changed });
  const hold = held(lease);
  signal?.throwIfAborted();
  hold.options = { ...hold.options, ...changed };
  return orAborted(renew(hold), signal);
}

/**
 * Releases both locks. If another has taken the lease, it enters read-only and
 * throws `lease-stale`. For a lease that has already ended it does nothing, but with
 * `force` it releases once more, also if the lease is read-only. An abort ends only
 * the wait for the release.
 * @param {HeldLease} lease @param {ReleaseLockOptions} [options] @returns {Promise<void>}
 */
export async function releaseProjectLock(lease, { force = false, signal, ...changed } = {}) {
  checkOptions({ signal, ...changed });
  const hold = holds.get(lease.leaseId);
  if (!hold) return;
  hold.options = { ...hold.options, ...changed };
  const released = end(hold, force);
  hold.lost.abort(new DOMException('project lock: released', 'AbortError')); // nothing has been sent yet
  await orAborted(released, signal);
}

/**
 * Runs fn under the lock. If the lock is lost, fn's signal aborts and
 * withProjectLock throws, whatever fn returns. If the lock is released while fn runs,
 * the signal aborts first and fn's result counts; so it is if the signal of the
 * options aborts. With `releaseOnError: false` an error of fn leaves the lock held; the
 * caller releases it.
 * @template T
 * @param {(lease: ProjectLockLease, lost: LockAbortSignal) => Promise<T> | T} fn
 * @param {WithLockOptions} [options] @returns {Promise<T>}
 */
export async function withProjectLock(fn, { releaseOnError = true, ...options } = {}) {
  checkFunction('fn', fn);
  const hold = await acquire(options);
  const lease = reading(hold);
  const stop = () => hold.lost.abort(options.signal?.reason);
  options.signal?.addEventListener('abort', stop);
  let result;
  try {
    result = await fn(lease, hold.lost.signal);
    if (hold.loss) throw hold.loss;
  } catch (error) {
    // fn's error is thrown; an event has reported a failed release.
    if (releaseOnError) await end(hold).catch(() => {});
    throw error;
  } finally {
    options.signal?.removeEventListener('abort', stop);
  }
  await end(hold);
  return result;
}

/**
 * Calls listener with each event from now on, in order. Returns a function that ends this and
 * may be called again. A listener that knows the events of seed 000 alone gets the others too, after
 * failures: let it ignore a type that it does not know.
 * @overload @param {(event: ProjectLockEvent) => void} listener @returns {() => void}
 */
/**
 * @overload @param {(event: ProjectLockStateEvent) => void} listener @returns {() => void}
 */
/** @param {(event: any) => void} listener @returns {() => void} */
export function subscribeLockEvents(listener) {
  checkFunction('the listener', listener);
  const subscription = { listener };
  subscriptions.add(subscription);
  return () => { subscriptions.delete(subscription); };
}

/** An earlier name of subscribeLockEvents. */
export const subscribeAllLockEvents = subscribeLockEvents;

/**
 * Calls write with each event as one line of JSON, named `autosave.lock.*`. Entering
 * read-only has seed 000's name `autosave.lock.readonly` as its alias. Returns a
 * function that ends this.
 * @param {(line: string) => void} write @returns {() => void}
 */
export function subscribeLockTelemetry(write) {
  checkFunction('write', write);
  return subscribeLockEvents((event) => {
    const { type, lease, info, error, ...fields } = /** @type {Record<string, any>} */ (event);
    const { leaseId, strategy, expiresAt } = lease ?? {};
    const { lastError, ...entered } = info ?? {}; // an error's text may contain the user's data
    write(JSON.stringify({
      feature: 'autosave', type: `autosave.${type.replace(':', '.')}`, ...(info && { alias: READONLY_ALIAS }),
      time: new Date().toISOString(), leaseId, strategy, expiresAt, ...entered, ...fields,
    }));
  });
}

const Target = /** @type {new () => { addEventListener: Listening, removeEventListener: Listening } & LockEventTarget} */ (
  /** @type {unknown} */ (EventTarget));

/** Dispatches each event as a CustomEvent of its type, with the event as its detail, until close is called. */
export class ProjectLockEventTarget extends Target {
  constructor() {
    super();
    this.close = subscribeLockEvents((event) => {
      this.dispatchEvent(new CustomEvent(event.type, { detail: event }));
      if (event.type === 'lock:readonly-entered') this.dispatchEvent(new CustomEvent(READONLY_ALIAS, { detail: event }));
    });
  }
}

/**
 * Asks the server, the browser or the file, right before a write, whether the lease is
 * held. If it is not, enters read-only and throws `lease-stale`. If it cannot be asked, throws
 * `renew-failed`: then do not write, and try again.
 * @param {HeldLease} lease
 * @returns {Promise<{ token: number, validForMs: number }>} how long from now the lease can be trusted
 */
export async function confirmProjectLock(lease) {
  const hold = held(lease);
  const answer = await must(hold, 'confirm', { path: `/confirm?token=${hold.token}` })
    .catch((error) => { throw error.code === 'lease-stale' ? enterReadonly(hold, error) : error; });
  held(lease); // still, after that time
  const now = performance.now();
  const validForMs = Math.min(answer.body.valid_for_ms - (now - answer.asked), hold.deadline - now); // then it is released
  if (!(validForMs > 0)) throw lockError('renew-failed', { context: { validForMs } });
  return { token: hold.token, validForMs };
}

// ---- Options ----------------------------------------------------------------

/** @param {any} n */
const isTime = (n) => Number.isFinite(n) && n >= 0;
/** @param {any} n */
const isCount = (n) => Number.isInteger(n) && n > 0;
/** @param {any} s */
const isText = (s) => typeof s === 'string';

/** What each option must be, and in words. @type {Record<string, [(value: any) => boolean, string]>} */
const OPTIONS = {
  signal: [(s) => s === null || typeof s?.throwIfAborted === 'function', 'an AbortSignal'],
  ownerId: [isText, 'a string'],
  retryLimit: [isCount, 'a whole number from 1'],
  backoff: [(b) => b !== null && typeof b === 'object', 'an object'],
  'backoff.initialMs': [isTime, 'a number of milliseconds'],
  'backoff.factor': [(n) => isTime(n) && n > 0, 'a number above 0'],
  'backoff.maxAttempts': [isCount, 'a whole number from 1'],
  backoffMs: [(list) => Array.isArray(list) && list.every(isTime), 'a list of milliseconds'],
  ttlMs: [(n) => isTime(n) && n > 0, 'a number of milliseconds above 0'],
  heartbeatIntervalMs: [(n) => isTime(n) && n > 0, 'a number of milliseconds above 0'],
  preferredStrategy: [(s) => s === 'web-lock' || s === 'file-lock', "'web-lock' or 'file-lock'"],
  onReadonly: [(f) => typeof f === 'function', 'a function'],
  resource: [(s) => isText(s) && /^[^-]/.test(s), "a string that does not begin with '-', as names of Web Locks"],
  endpoint: [(s) => isText(s) && /^($|\.{0,2}\/|https?:\/\/)/i.test(s), "a path that begins with '/', './' or '../', or an http(s) URL, or ''"],
};

/** @param {string} name @param {any} value */
function checkFunction(name, value) {
  if (typeof value !== 'function') throw new TypeError(`project lock: ${name} must be a function, not ${isText(value) ? `'${value}'` : String(value)}`);
}

/**
 * Throws a TypeError that names the first unknown option, or else the first with an impossible value.
 * @param {AcquireLockOptions} options
 */
function checkOptions(options) {
  if (options === null || typeof options !== 'object') throw new TypeError(`project lock: the options must be an object, not ${String(options)}`);
  const nested = Object.keys(Object(options.backoff)).map((name) => `backoff.${name}`);
  const unknown = [...Object.keys(options), ...nested].find((name) => !Object.hasOwn(OPTIONS, name));
  if (unknown) throw new TypeError(`project lock: the option ${unknown} is unknown`);

  for (const [name, [possible, words]] of Object.entries(OPTIONS)) {
    const value = name.split('.').reduce((/** @type {any} */ of, key) => of?.[key], options);
    if (value !== undefined && !possible(value)) {
      throw new TypeError(`project lock: the option ${name} must be ${words}, not ${isText(value) ? `'${value}'` : String(value)}`);
    }
  }
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
/** @type {Map<string, Promise<unknown>>} releases in progress after a loss or an abort, by key */
const givingBack = new Map();
/** @type {Set<{ listener: (event: ProjectLockEvent) => void }>} */
const subscriptions = new Set();
/** @type {ProjectLockEvent[]} events to deliver; the first one is being delivered */
const queue = [];

/** @param {AcquireLockOptions} options */
function newHold(options) {
  const { resource = PROJECT, endpoint = defaults.endpoint, ownerId = tabName(), preferredStrategy = 'web-lock' } = options;
  const leaseId = randomId();
  const url = endpoint && `${endpoint}/${encodeURIComponent(resource)}/lock`;
  return {
    options, resource, leaseId, ownerId, url,
    key: url || resource,
    owner: `${ownerId.replace(/[^A-Za-z0-9_-]/g, '-').slice(0, 31)}-${leaseId.replaceAll('-', '')}`,
    file: resource === PROJECT ? '.lock' : `.lock-${encodeURIComponent(resource)}`,
    folder: /** @type {{ removeEntry(name: string): Promise<void> } | null} */ (null), // of a file that is held
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
    lost: /** @type {LockAbortController} */ (new AbortController()), // of withProjectLock's fn
    renewing: /** @type {Promise<ProjectLockLease> | null} */ (null),
    releasing: /** @type {Promise<void> | null} */ (null),
    letGo: () => {}, // of this browser's lock
    gone: /** @type {Promise<unknown>} */ (Promise.resolve()), // when the browser has freed it
    disarm: () => {}, // the heartbeat and the watchdog
  };
}

/** @param {Hold} hold @returns {ProjectLockLease} */
function reading(hold) {
  const wall = Date.now() - performance.now();
  const iso = (/** @type {number} */ ms) => new Date(wall + ms).toISOString();
  const { leaseId, strategy, resource, acquiredAt, ttlMs, viaFallback, token, holder, owner: client } = hold;
  return Object.freeze({
    leaseId, strategy, resource, acquiredAt, ttlMs, viaFallback, token, holder, client,
    expiresAt: iso(hold.deadline), nextHeartbeatAt: iso(hold.due), renewAttempt: hold.retry,
  });
}

/** Returns the hold of a lease that can still be trusted. @param {HeldLease} lease */
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
  checkOptions(options);
  const hold = newHold(options);
  const { signal } = options;
  signal?.throwIfAborted();
  do await givingBack.get(hold.key); while (givingBack.has(hold.key)); // onReadonly is called before the release
  for (const old of holds.values()) if (old.key === hold.key && old.state === 'Readonly') reset(old);
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
  const webLocks = globalThis.navigator?.locks;
  if (hold.strategy === 'web-lock' && !webLocks) throw lockError('web-lock-unsupported');
  try {
    // A page that prefers the file takes the Web Lock too, so that it excludes the others.
    if (hold.strategy === 'web-lock' || (!hold.url && webLocks)) await takeWebLock(hold);
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
    hold.gone = navigator.locks.request(hold.resource, { mode: 'exclusive', ifAvailable: true }, (lock) => {
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

/** Releases the server's lease or the file once, ignoring errors. @param {Hold} hold */
function giveBack(hold) {
  const asked = ask(hold, 'DELETE', { keepalive: true }).catch(() => {});
  const done = Promise.all([asked, givingBack.get(hold.key)]).then(() => {
    if (givingBack.get(hold.key) === done) givingBack.delete(hold.key);
  });
  givingBack.set(hold.key, done);
  return done;
}

/**
 * Makes as many attempts as the options allow, with waits between them, and emits an event for
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
    const { limit, waitMs } = retrying(hold.options, retry);
    const last = retry + 1 >= limit;
    const error = force || (last && ENDS_AT_THE_LIMIT.has(failure.code)) ? final(failure) : failure;
    if (error.code === 'fallback-conflict') emit({ type: 'lock:warning', warning: 'fallback-degraded' });
    if (error.code === 'release-failed') emit({ type: 'lock:release-failed', leaseId: hold.leaseId, retry, force });
    announce(hold, error);
    if (last || !error.retryable) throw error;
    emit({ type: 'lock:waiting', strategy, retry, waitMs });
    await pause(waitMs, signal);
    stay(hold, state);
  }
}

// ---- Time ---------------------------------------------------------------------

/** The limit of attempts, and the wait after the attempt numbered retry. @param {AcquireLockOptions} options @param {number} retry */
function retrying({ retryLimit, backoffMs, backoff = {} }, retry) {
  const { initialMs = 500, factor = 2, maxAttempts = backoffMs ? backoffMs.length + 1 : MAX_LOCK_RETRIES } = backoff;
  const doubled = Math.min(initialMs * factor ** retry, Math.max(MAX_BACKOFF_MS, initialMs));
  const waitMs = backoffMs ? backoffMs[Math.min(retry, backoffMs.length - 1)] ?? 0 : doubled;
  return { limit: retryLimit ?? maxAttempts, waitMs };
}

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

/**
 * Waits for promise until the signal aborts; what the promise stands for goes on.
 * @template T @param {Promise<T>} promise @param {AbortSignal} [signal] @returns {Promise<T>}
 */
function orAborted(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    signal.addEventListener('abort', stop);
    if (signal.aborted) stop();
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

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
    const worker = startWorker();
    worker.onmessage = ({ data }) => ringing.get(data)?.();
    worker.onerror = (event) => event.preventDefault(); // the page's timers run
    return worker;
  } catch {
    return null;
  }
}

// ---- The browser's own locks: they answer as the server does -----------------------

const PROJECT = 'imgponic:project';

/** @typedef {{ status: number, body: any }} Reply */

/** Answers a request about the Web Lock, which take has taken. @param {Hold} hold @param {string} method @param {AbortSignal} timeout @returns {Promise<Reply>} */
async function askBrowser(hold, method, timeout) {
  if (method === 'POST') {
    const file = await askFile(hold, 'GET', timeout).catch(() => null);
    if (file?.body.error === 'not_locked_by_user') return { status: 409, body: { by: 'project/.lock' } }; // a tab without Web Locks
    return { status: 200, body: { token: Date.now(), holder: hold.ownerId, ttl_ms: Infinity } };
  }
  if (method === 'DELETE') {
    hold.letGo();
    await orAborted(hold.gone, timeout);
    return { status: 200, body: {} };
  }
  // A renewal asks nobody: the browser itself reports a theft to takeWebLock.
  const { held = [] } = method === 'GET' ? await orAborted(navigator.locks.query(), timeout) : { held: [{ name: hold.resource }] };
  if (!held.some(({ name }) => name === hold.resource)) return { status: 404, body: { error: 'lock_not_found' } };
  return { status: 200, body: { ttl_ms: Infinity, valid_for_ms: hold.deadline - performance.now() } };
}

/** Since when each file is seen unchanged, on performance.now()'s clock. @type {Map<string, { version: string, since: number }>} */
const seen = new Map();

/** Asks a Worker of its own about the file: only a Worker can lock one. @param {Hold} hold @param {string} method @param {AbortSignal} timeout @returns {Promise<Reply>} */
async function askFile(hold, method, timeout) {
  if (!globalThis.navigator?.storage?.getDirectory) {
    return { status: 403, body: { error: globalThis.isSecureContext === false ? 'insecure_context' : 'no_file_system' } };
  }
  const missing = { status: method === 'POST' ? 403 : 503, body: { error: 'no_worker' } };
  let worker;
  try {
    worker = startWorker();
  } catch {
    return missing;
  }
  try {
    const reply = await orAborted(new Promise((resolve) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = (event) => { event.preventDefault(); resolve(missing); };
      const { file, leaseId: uuid, ownerId: owner } = hold;
      const { version, since = NaN } = seen.get(file) ?? {};
      const unchangedMs = performance.now() - since;
      worker.postMessage({ method, file, uuid, owner, ttl: wantedTtlMs(hold), version, unchangedMs });
    }), timeout);
    const { version } = reply.body;
    if (version !== seen.get(hold.file)?.version) seen.set(hold.file, { version, since: performance.now() });
    if (method === 'POST' && reply.status === 200) hold.folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('project');
    return reply;
  } finally {
    worker.terminate();
  }
}

// ---- The Worker ----------------------------------------------------------------

/** The Worker's script, as text: a bundler changes the module's functions, and gives them another URL. */
const SCRIPT = `
const timers = new Map();

onmessage = ({ data }) => {
  if (data.method) {
    serveFile(data).then(postMessage, ({ name }) =>
      postMessage({ status: name === 'SecurityError' ? 403 : 503, body: { error: name } }));
    return;
  }
  const { id, ms } = data;
  clearTimeout(timers.get(id));
  timers.delete(id);
  if (ms === undefined) return;
  timers.set(id, setTimeout(() => { timers.delete(id); postMessage(id); }, ms));
};

/** Does what a request asks, while no other tab can. */
async function serveFile({ method, file, uuid, owner, ttl, version, unchangedMs }) {
  const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('project', { create: true });
  const guard = await openAlone(folder, '.lock.guard');
  try {
    const now = Date.now();
    const lock = await readLock(folder, file);
    const mine = lock?.uuid === uuid;
    // Unchanged for its TTL, a lock has expired, also if the clock that dated it was an hour ahead.
    const outwaited = lock?.version === version && unchangedMs >= lock?.ttl;
    const held = lock && now < lock.until && !outwaited;
    const answer = (status, body) => ({ status, body: { ...body, version: lock?.version } });
    if (method === 'DELETE' && mine) {
      await folder.removeEntry(file);
      return answer(200);
    }
    if (method === 'POST' && held && !mine) return answer(409);
    if (method !== 'POST' && !held) return answer(404, { error: 'lock_not_found' });
    if (method !== 'POST' && !mine) return answer(403, { error: 'not_locked_by_user' });
    if (method === 'GET') return answer(200, { valid_for_ms: lock.until - now });
    const token = method === 'PUT' ? lock.token : Math.max(now, (lock?.token ?? 0) + 1);
    const text = JSON.stringify({ uuid, mtime: new Date(now).toISOString(), ttl, owner, token });
    const handle = await openAlone(folder, file);
    await handle.truncate(0);
    handle.write(new TextEncoder().encode(text), { at: 0 });
    await handle.flush();
    await handle.close();
    return answer(200, { token, holder: owner, ttl_ms: ttl });
  } finally {
    await guard.close();
  }
}

/** Opens a file as soon as no one else has it open. */
async function openAlone(folder, name) {
  const handle = await folder.getFileHandle(name, { create: true });
  for (;;) {
    try {
      return await handle.createSyncAccessHandle();
    } catch (error) {
      if (error.name !== 'NoModificationAllowedError' && error.name !== 'InvalidStateError') throw error;
      await new Promise((resolve) => setTimeout(resolve, 10)); // the page ends this after its timeout
    }
  }
}

/**
 * Returns the lock in a file, or null if there is none. An unreadable file, as a crash
 * leaves it, is held until one TTL after its modification.
 */
async function readLock(folder, name) {
  const found = await folder.getFileHandle(name).then((handle) => handle.getFile(), (error) => {
    if (error.name === 'NotFoundError') return null;
    throw error;
  });
  if (!found) return null;
  const text = await found.text();
  const version = found.lastModified + ' ' + text;
  try {
    const { uuid, mtime, ttl, token } = JSON.parse(text);
    const until = Date.parse(mtime) + ttl;
    if (typeof uuid === 'string' && Math.abs(until - found.lastModified) <= 86_400_000) return { uuid, token, until, ttl, version };
  } catch { /* unreadable */ }
  const ttl = ${FALLBACK_LOCK_TTL_MS};
  return { uuid: '', token: 0, until: found.lastModified + ttl, ttl, version };
}
`;
let script = '';

/** Starts a Worker from a Blob, which also a bundle, a page of another origin and a page without its web server can. */
function startWorker() {
  script ||= URL.createObjectURL(new Blob([SCRIPT], { type: 'text/javascript' }));
  return new Worker(script);
}

// ---- The server, errors, events -------------------------------------------------

/** @typedef {Reply & { asked: number }} Answer asked: when, on performance.now()'s clock */

/** @typedef {{ path?: string, keepalive?: boolean, timeoutMs?: number }} Asking */

/** @param {Hold} hold @param {string} method @param {Asking} [asking] @returns {Promise<Answer>} */
async function ask(hold, method, { path = '', keepalive = false, timeoutMs = timings(hold).requestMs } = {}) {
  const asked = performance.now();
  const signal = AbortSignal.timeout(timeoutMs);
  if (!hold.url) return { ...await (hold.strategy === 'web-lock' ? askBrowser : askFile)(hold, method, signal), asked };
  const response = await fetch(hold.url + path, {
    method, keepalive, cache: 'no-store', credentials: 'include', headers: { 'X-Lock-Client': hold.owner }, signal,
  });
  const body = await response.json().catch((error) => { if (response.ok) throw error; return {}; });
  return { status: response.status, body, asked };
}

/** Each operation's method, and its error if it gets no answer. */
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
  const passing = status >= 500 || status === 408 || (status === 429 && operation !== 'acquire');
  const gone = body.error === 'not_locked_by_user' || body.error === 'lock_not_found';
  if (passing || (operation === 'release' && !gone)) {
    return lockError(OPERATIONS[operation].failed, { context, retryable: status !== 401 });
  }
  if (operation !== 'acquire') return lockError('lease-stale', { context });
  return status === 409 ? refusal(strategy, context) : lockError('acquire-denied', { context, retryable: status === 429 });
}

const NEVER_RETRYABLE = new Set(['web-lock-unsupported', 'lease-stale']);
const ENDS_AT_THE_LIMIT = new Set(['acquire-denied', 'acquire-timeout', 'fallback-conflict']);

/** What an error's message adds for context.error. @type {Record<string, string>} */
const REASONS = {
  insecure_context: 'this page needs https, or localhost: other pages have neither Web Locks nor files',
  no_file_system: 'this browser has no origin private file system',
  no_worker: "this page's Content-Security-Policy needs worker-src blob:",
  too_many_locks: 'this session holds too many locks',
  not_permitted: 'the application does not let this session use the room',
};

/** @typedef {{ cause?: unknown, context?: Record<string, unknown>, retryable?: boolean }} Details */

/** @param {ProjectLockErrorCode} code @param {Details} [details] @returns {ProjectLockError} */
function lockError(code, { cause, context = {}, retryable = !NEVER_RETRYABLE.has(code) } = {}) {
  const reason = REASONS[String(context.error)];
  const error = new Error(`project lock: ${code}${reason ? `: ${reason}` : ''}`, { cause });
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

/** Returns a UUID. Pages without TLS have no randomUUID. */
function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

let tab = '';

/** The default ownerId: the origin, and a random name that this tab has until it is reloaded. */
function tabName() {
  tab ||= `${globalThis.location?.origin}-${randomId().slice(0, 8)}`.replace(/[^A-Za-z0-9_]+/g, '-').slice(-31);
  return tab;
}

/** @param {PageTransitionEvent} event */
function leave(event) {
  for (const hold of [...holds.values()]) {
    if (hold.state === 'Readonly') continue;
    // A Worker does not outlive the page. No other tab writes the file before the deadline.
    if (performance.now() < hold.deadline) hold.folder?.removeEntry(hold.file).catch(() => {});
    if (event.persisted) { expire(hold); continue; }
    giveBack(hold); // before the browser's lock: its next holder asks the server next
    reset(hold);
  }
}

if (typeof document !== 'undefined') addEventListener('pagehide', leave);
