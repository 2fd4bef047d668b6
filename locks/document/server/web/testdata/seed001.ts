// Seed 001's calls with the names of its page, as its author types them. The tests compile this, also
// without lib dom.
import {
  acquireProjectLock, renewProjectLock, releaseProjectLock, subscribeLockEvents, withProjectLock,
  ProjectLockEventTarget, WEB_LOCK_TTL_MS, LOCK_HEARTBEAT_INTERVAL_MS,
} from './locks.js';
import type {
  AcquireProjectLockOptions, ProjectLockApi, ProjectLockError, ProjectLockEvent, ProjectLockLease, ProjectLockReadonlyReason,
  ProjectLockWarningKind,
} from './locks.js';

/** What the monitoring reports, and the audit of read-only. */
export interface Seen {
  readonly types: ProjectLockEvent['type'][];
  readonly warnings: ProjectLockWarningKind[];
  readonly errors: { code: string; retryable: boolean }[];
  fallbacks: number;
  readonly?: ProjectLockReadonlyReason;
}

export function watch(seen: Seen): () => void {
  return subscribeLockEvents((event: ProjectLockEvent) => {
    seen.types.push(event.type);
    switch (event.type) {
      case 'lock:warning': seen.warnings.push(event.warning); break;
      case 'lock:error': seen.errors.push({ code: event.error.code, retryable: event.retryable }); break;
      case 'lock:fallback-engaged': seen.fallbacks++; break;
      case 'lock:readonly-entered': seen.readonly = event.info.lastError.code; break;
    }
  });
}

// Without a type the listener has all events too.
export const stop = subscribeLockEvents((event) => { if (event.type === 'lock:waiting') event.waitMs.toFixed(); });

export function warned(target: ProjectLockEventTarget, seen: Seen): void {
  target.addEventListener('lock:warning', ({ detail }) => seen.warnings.push(detail.warning));
}

export const api: ProjectLockApi = {
  acquireProjectLock, renewProjectLock, releaseProjectLock, withProjectLock, subscribeLockEvents,
};

export async function save(options: AcquireProjectLockOptions, write: (lease: ProjectLockLease) => Promise<void>): Promise<string> {
  try {
    await withProjectLock(write, {
      ttlMs: WEB_LOCK_TTL_MS, heartbeatIntervalMs: LOCK_HEARTBEAT_INTERVAL_MS, backoff: { initialMs: 500, factor: 2, maxAttempts: 3 },
      onReadonly: ({ reason }) => { if (reason === 'lease-stale') stop(); }, ...options,
    });
    return 'saved';
  } catch (error) {
    return (error as ProjectLockError).code;
  }
}
