/**
 * Takes the lock, or enters read-only and throws a ProjectLockError. Before that it throws a
 * TypeError that names an unknown option or one with an impossible value, as all functions do. After an abort
 * it releases what it has taken, which takes at most one request's timeout, and
 * throws the signal's reason.
 * @param {AcquireLockOptions} [options] @returns {Promise<ProjectLockLease>}
 */
export function acquireProjectLock(options?: AcquireLockOptions): Promise<ProjectLockLease>;
/**
 * Renews at once, or joins the renewal in progress; heartbeats renew by themselves.
 * Throws `lease-stale`, or `renew-failed`: then the lease is still held, unless
 * this was the second heartbeat in a row that failed. The options count for the
 * heartbeats from then on too. An abort ends only the wait for the renewal.
 * @param {HeldLease} lease @param {RenewLockOptions} [options] @returns {Promise<ProjectLockLease>}
 */
export function renewProjectLock(lease: HeldLease, { signal, ...changed }?: RenewLockOptions): Promise<ProjectLockLease>;
/**
 * Releases both locks. If another has taken the lease, it enters read-only and
 * throws `lease-stale`. For a lease that has already ended it does nothing, but with
 * `force` it releases once more, also if the lease is read-only. An abort ends only
 * the wait for the release.
 * @param {HeldLease} lease @param {ReleaseLockOptions} [options] @returns {Promise<void>}
 */
export function releaseProjectLock(lease: HeldLease, { force, signal, ...changed }?: ReleaseLockOptions): Promise<void>;
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
export function withProjectLock<T>(fn: (lease: ProjectLockLease, lost: LockAbortSignal) => Promise<T> | T, { releaseOnError, ...options }?: WithLockOptions): Promise<T>;
/**
 * Calls listener with each event from now on, in order. Returns a function that ends this and
 * may be called again. A listener that knows the events of seed 000 alone gets the others too, after
 * failures: let it ignore a type that it does not know.
 * @overload @param {(event: ProjectLockEvent) => void} listener @returns {() => void}
 */
export function subscribeLockEvents(listener: (event: ProjectLockEvent) => void): () => void;
/**
 * @overload @param {(event: ProjectLockStateEvent) => void} listener @returns {() => void}
 */
export function subscribeLockEvents(listener: (event: ProjectLockStateEvent) => void): () => void;
/**
 * Calls write with each event as one line of JSON, named `autosave.lock.*`. Entering
 * read-only has seed 000's name `autosave.lock.readonly` as its alias. Returns a
 * function that ends this.
 * @param {(line: string) => void} write @returns {() => void}
 */
export function subscribeLockTelemetry(write: (line: string) => void): () => void;
/**
 * Asks the server, the browser or the file, right before a write, whether the lease is
 * held. If it is not, enters read-only and throws `lease-stale`. If it cannot be asked, throws
 * `renew-failed`: then do not write, and try again.
 * @param {HeldLease} lease
 * @returns {Promise<{ token: number, validForMs: number }>} how long from now the lease can be trusted
 */
export function confirmProjectLock(lease: HeldLease): Promise<{
    token: number;
    validForMs: number;
}>;
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
export const WEB_LOCK_TTL_MS: 25000;
export const FALLBACK_LOCK_TTL_MS: 30000;
export const LOCK_HEARTBEAT_INTERVAL_MS: 10000;
export const MAX_LOCK_RETRIES: 3;
/**
 * Calls listener with each event from now on, in order. Returns a function that ends this and
 * may be called again. A listener that knows the events of seed 000 alone gets the others too, after
 * failures: let it ignore a type that it does not know.
 * @overload @param {(event: ProjectLockEvent) => void} listener @returns {() => void}
 */
export function subscribeAllLockEvents(listener: (event: ProjectLockEvent) => void): () => void;
/**
 * @overload @param {(event: ProjectLockStateEvent) => void} listener @returns {() => void}
 */
export function subscribeAllLockEvents(listener: (event: ProjectLockStateEvent) => void): () => void;
declare const ProjectLockEventTarget_base: new () => {
    addEventListener: Listening;
    removeEventListener: Listening;
} & LockEventTarget;
/** Dispatches each event as a CustomEvent of its type, with the event as its detail, until close is called. */
export class ProjectLockEventTarget extends ProjectLockEventTarget_base {
    close: () => void;
}
export type Reply = {
    status: number;
    body: any;
};
/**
 * asked: when, on performance.now()'s clock
 */
export type Answer = Reply & {
    asked: number;
};
export type Asking = {
    path?: string;
    keepalive?: boolean;
    timeoutMs?: number;
};
export type Operation = keyof typeof OPERATIONS;
export type Details = {
    cause?: unknown;
    context?: Record<string, unknown>;
    retryable?: boolean;
};
export type LockAbortSignal = typeof globalThis extends {
    AbortSignal: {
        prototype: infer T;
    };
} ? T : {
    readonly aborted: boolean;
    readonly reason: any;
    throwIfAborted(): void;
};
export type Abortable = {
    signal?: LockAbortSignal;
};
export type LockAbortController = typeof globalThis extends {
    AbortController: {
        prototype: infer T;
    };
} ? T : {
    readonly signal: LockAbortSignal;
    abort(reason?: any): void;
};
export type LockEventTarget = typeof globalThis extends {
    EventTarget: {
        prototype: infer T;
    };
} ? T : {};
export type LockCustomEvent<E> = typeof globalThis extends {
    CustomEvent: {
        prototype: infer T;
    };
} ? Omit<T, "detail"> & {
    readonly detail: E;
} : {
    readonly type: string;
    readonly detail: E;
};
export type ProjectLockStrategy = "web-lock" | "file-lock";
export type ProjectLockErrorCode = "web-lock-unsupported" | "acquire-denied" | "acquire-timeout" | "fallback-conflict" | "lease-stale" | "renew-failed" | "release-failed";
export type ProjectLockReadonlyReason = ProjectLockErrorCode;
export type ProjectLockWarningKind = "fallback-degraded" | "heartbeat-delayed";
export type ProjectLockError = Error & {
    readonly code: ProjectLockErrorCode;
    readonly retryable: boolean;
    readonly cause?: unknown;
    readonly context?: Readonly<Record<string, unknown>>;
};
/**
 * A frozen copy; renewing returns a new one. Its times are for display.
 */
export type ProjectLockLease = {
    leaseId: string;
    strategy: ProjectLockStrategy;
    resource: string;
    /**
     * ISO 8601
     */
    acquiredAt: string;
    /**
     * ISO 8601: the end of trust in this browser
     */
    expiresAt: string;
    ttlMs: number;
    /**
     * ISO 8601
     */
    nextHeartbeatAt: string;
    /**
     * failed attempts before the last renewal
     */
    renewAttempt: number;
    viaFallback: boolean;
    /**
     * fencing token: grows with each acquisition, by anyone
     */
    token: number;
    /**
     * the public name that the server's notifications use; without a server the ownerId
     */
    holder: string;
    /**
     * the X-Lock-Client of its requests, for an application that confirms the lock itself
     */
    client: string;
};
export type ProjectLockReadonlyInfo = {
    reason: ProjectLockReadonlyReason;
    /**
     * attempts that failed before the last one
     */
    retry: number;
    leaseId?: string | undefined;
    lastError: ProjectLockError;
};
/**
 * A lease of any version of these types. Its leaseId counts.
 */
export type HeldLease = Readonly<Pick<ProjectLockLease, "leaseId"> & Partial<ProjectLockLease>>;
/**
 * the events of seed 000
 */
export type ProjectLockStateEvent = ({
    type: "lock:attempt";
    strategy: ProjectLockStrategy;
    retry: number;
    leaseId?: string;
} | {
    type: "lock:acquired";
    lease: ProjectLockLease;
} | {
    type: "lock:renew-scheduled";
    lease: ProjectLockLease;
    nextHeartbeatInMs: number;
} | {
    type: "lock:renewed";
    lease: ProjectLockLease;
    retry: number;
} | {
    type: "lock:release-requested";
    lease: ProjectLockLease;
    force: boolean;
} | {
    type: "lock:released";
    leaseId: string;
    strategy: ProjectLockStrategy;
    durationMs: number;
} | {
    type: "lock:readonly-entered";
    info: ProjectLockReadonlyInfo;
});
/**
 * each event: seed 001 adds errors, waits, warnings and the fallback
 */
export type ProjectLockEvent = (ProjectLockStateEvent | {
    type: "lock:release-failed";
    leaseId: string;
    retry: number;
    force: boolean;
} | {
    type: "lock:waiting";
    strategy: ProjectLockStrategy;
    retry: number;
    waitMs: number;
} | {
    type: "lock:error";
    strategy: ProjectLockStrategy;
    retry: number;
    error: ProjectLockError;
    code: ProjectLockErrorCode;
    retryable: boolean;
} | {
    type: "lock:fallback-engaged";
    strategy: ProjectLockStrategy;
    reason: ProjectLockErrorCode;
} | {
    type: "lock:warning";
    warning: ProjectLockWarningKind;
    leaseId?: string;
    lateMs?: number;
});
/**
 * Waits between attempts: 500 ms, then twice as long each time, at most 4 s.
 */
export type ProjectLockBackoff = {
    /**
     * default 500
     */
    initialMs?: number | undefined;
    /**
     * default 2
     */
    factor?: number | undefined;
    /**
     * default 3
     */
    maxAttempts?: number | undefined;
};
export type AcquireLockOptions = {
    /**
     * ends the acquisition, not a lease once held
     */
    signal?: Abortable["signal"];
    /**
     * its first 31 characters begin the name that the server knows the holder
     * by, with - instead of all but A-Z a-z 0-9 _ -; default the origin and a random name of the tab
     */
    ownerId?: string | undefined;
    /**
     * attempts in each operation, instead of backoff.maxAttempts
     */
    retryLimit?: number | undefined;
    backoff?: ProjectLockBackoff | undefined;
    /**
     * the waits themselves, the last one repeated, instead of those of
     * `backoff`; n waits mean n + 1 attempts, unless retryLimit or backoff.maxAttempts says how many
     */
    backoffMs?: readonly number[] | undefined;
    /**
     * default 25 s, or 30 s without a Web Lock; the server's TTL if that is shorter
     */
    ttlMs?: number | undefined;
    /**
     * default 10 s, at most 2/5 of the TTL
     */
    heartbeatIntervalMs?: number | undefined;
    /**
     * default `web-lock`
     */
    preferredStrategy?: ProjectLockStrategy | undefined;
    onReadonly?: ((info: ProjectLockReadonlyInfo) => void) | undefined;
    /**
     * what is locked, default `imgponic:project`
     */
    resource?: string | undefined;
    /**
     * of the server, as `/api/documents` or `https://…`; empty: no server
     */
    endpoint?: string | undefined;
};
export type RetryOptions = Pick<AcquireLockOptions, "signal" | "retryLimit" | "backoff" | "backoffMs">;
export type RenewLockOptions = RetryOptions & Pick<AcquireLockOptions, "ttlMs">;
export type ReleaseLockOptions = RetryOptions & {
    force?: boolean;
};
export type WithLockOptions = AcquireLockOptions & {
    releaseOnError?: boolean;
};
export type AcquireProjectLockOptions = AcquireLockOptions;
export type RenewProjectLockOptions = RenewLockOptions;
export type ReleaseProjectLockOptions = ReleaseLockOptions;
export type WithProjectLockOptions = WithLockOptions;
export type ProjectLockEventMap = { [E in ProjectLockEvent as E["type"]]: LockCustomEvent<E>; } & {
    "autosave.lock.readonly": LockCustomEvent<Extract<ProjectLockEvent, {
        type: "lock:readonly-entered";
    }>>;
};
export type Listening = <T extends keyof ProjectLockEventMap>(type: T, listener: (event: ProjectLockEventMap[T]) => void, options?: boolean | {
    capture?: boolean;
    once?: boolean;
    passive?: boolean;
    signal?: LockAbortSignal;
}) => void;
export type ProjectLockApi = Pick<typeof import("./locks.js"), "acquireProjectLock" | "renewProjectLock" | "releaseProjectLock" | "withProjectLock" | "subscribeLockEvents">;
export type State = keyof typeof MOVES;
/**
 * The state of one acquisition.
 */
export type Hold = ReturnType<typeof newHold>;
declare namespace OPERATIONS {
    namespace acquire {
        let method: "POST";
        let failed: "acquire-timeout";
    }
    namespace renew {
        let method_1: "PUT";
        export { method_1 as method };
        let failed_1: "renew-failed";
        export { failed_1 as failed };
    }
    namespace confirm {
        let method_2: "GET";
        export { method_2 as method };
        let failed_2: "renew-failed";
        export { failed_2 as failed };
    }
    namespace release {
        let method_3: "DELETE";
        export { method_3 as method };
        let failed_3: "release-failed";
        export { failed_3 as failed };
    }
}
declare namespace MOVES {
    let Idle: string[];
    let AcquireWebLock: string[];
    let AcquireFileLock: string[];
    let ActiveWebLock: string[];
    let ActiveFileLock: string[];
    let HeartbeatQueued: string[];
    let Renewing: string[];
    let Releasing: string[];
    let Readonly: string[];
}
/** @param {AcquireLockOptions} options */
declare function newHold(options: AcquireLockOptions): {
    options: AcquireLockOptions;
    resource: string;
    leaseId: string;
    ownerId: string;
    url: string;
    key: string;
    owner: string;
    file: string;
    folder: {
        removeEntry(name: string): Promise<void>;
    } | null;
    strategy: ProjectLockStrategy;
    viaFallback: boolean;
    state: State;
    token: number;
    holder: string;
    ttlMs: number;
    acquiredAt: string;
    acquired: number;
    deadline: number;
    due: number;
    retry: number;
    missed: number;
    doubtful: boolean;
    announced: ProjectLockError | null;
    loss: ProjectLockError | null;
    lost: LockAbortController;
    renewing: Promise<ProjectLockLease> | null;
    releasing: Promise<void> | null;
    letGo: () => void;
    gone: Promise<unknown>;
    disarm: () => void;
};
export {};
