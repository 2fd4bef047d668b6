// The calls of seeds 000 and 001, as their authors would type them. The package browser
// compiles and runs them.
import {
  acquireProjectLock, renewProjectLock, releaseProjectLock, withProjectLock, subscribeLockEvents, subscribeAllLockEvents,
  ProjectLockEventTarget, WEB_LOCK_TTL_MS, FALLBACK_LOCK_TTL_MS, LOCK_HEARTBEAT_INTERVAL_MS, MAX_LOCK_RETRIES,
} from './locks.js';
import type {
  AcquireLockOptions, AcquireProjectLockOptions, ProjectLockApi, ProjectLockError, ProjectLockErrorCode, ProjectLockEvent,
  ProjectLockLease, ProjectLockReadonlyInfo, ProjectLockReadonlyReason, ProjectLockStrategy, ProjectLockWarningKind,
} from './locks.js';

const api: ProjectLockApi = {
  acquireProjectLock, renewProjectLock, releaseProjectLock, withProjectLock, subscribeLockEvents,
};

/** Takes, renews and releases the lock in each way, and returns what an application has seen. */
export async function run(): Promise<unknown> {
  const controller = new AbortController();
  const { signal } = controller;
  const types: ProjectLockEvent['type'][] = [];
  const warnings: ProjectLockWarningKind[] = [];
  const unsubscribe: () => void = api.subscribeLockEvents((event) => types.push(event.type));
  const unwatch = subscribeAllLockEvents((event) => { if (event.type === 'lock:warning') warnings.push(event.warning); });
  const target: ProjectLockEventTarget = new ProjectLockEventTarget();
  const plain: EventTarget = target;
  const readonly: [string, ProjectLockReadonlyReason | undefined][] = [];
  target.addEventListener('lock:readonly-entered', (event) => readonly.push([event.type, event.detail.info.reason]));
  target.addEventListener('autosave.lock.readonly', ({ type, detail: { info } }) => readonly.push([type, info.lastError.code]));
  const leases: ProjectLockLease[] = [];
  const acquired = (event: CustomEvent<{ lease: ProjectLockLease }>): void => { leases.push(event.detail.lease); };
  target.addEventListener('lock:acquired', acquired, { once: false });

  const options: AcquireProjectLockOptions = {
    ttlMs: FALLBACK_LOCK_TTL_MS,
    heartbeatIntervalMs: LOCK_HEARTBEAT_INTERVAL_MS,
    preferredStrategy: 'web-lock',
    backoff: { initialMs: 500, factor: 2, maxAttempts: MAX_LOCK_RETRIES },
    signal,
    onReadonly: ({ reason, lastError }: ProjectLockReadonlyInfo) => readonly.push([reason, lastError?.code]),
  };
  const earlier: AcquireLockOptions = { signal, ownerId: 'author', retryLimit: 3, backoffMs: [5, 10, 20] as const };

  const lease = await acquireProjectLock(options);
  const strategy: ProjectLockStrategy = lease.strategy;
  const renewed = await renewProjectLock(lease, { signal, backoff: { maxAttempts: 2 } });
  const denied: ProjectLockErrorCode = await acquireProjectLock(earlier).then(
    () => { throw new Error('two leases'); }, (error: ProjectLockError) => error.code);
  await releaseProjectLock(renewed, { signal, force: false });
  target.removeEventListener('lock:acquired', acquired);
  const result: number = await withProjectLock(async (held) => held.ttlMs, { signal, releaseOnError: true });
  let kept: ProjectLockLease = lease;
  const failed = await withProjectLock(async (held) => { kept = held; throw new Error('mine'); }, { releaseOnError: false })
    .catch((error: Error) => error.message);
  await releaseProjectLock(kept);
  const mine = types.length;
  unsubscribe();
  unsubscribe();
  unwatch();
  controller.abort();
  const aborted = await acquireProjectLock(options).catch((error: DOMException) => error.name);
  target.close();
  return {
    plain: plain === target, strategy, denied, result, failed, aborted, readonly, warnings: warnings.length, events: mine > 0, acquired: leases.length,
    trusted: [strategy === 'web-lock' ? WEB_LOCK_TTL_MS : FALLBACK_LOCK_TTL_MS, lease.ttlMs], same: renewed.leaseId === lease.leaseId,
  };
}
