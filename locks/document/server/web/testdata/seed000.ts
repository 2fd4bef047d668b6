// Seed 000's own types, of which the module is an implementation. The tests compile this.
import * as locks from './locks.js';

type ProjectLockStrategy = 'web-lock' | 'file-lock';
type ProjectLockErrorCode = 'web-lock-unsupported' | 'acquire-denied' | 'acquire-timeout' | 'fallback-conflict'
  | 'lease-stale' | 'renew-failed' | 'release-failed';

interface AcquireLockOptions {
  readonly signal?: AbortSignal;
  readonly ownerId?: string;
  readonly retryLimit?: number;
  readonly backoffMs?: readonly [number, number, number];
}

interface ProjectLockLease {
  readonly leaseId: string;
  readonly strategy: ProjectLockStrategy;
  readonly acquiredAt: string;
  readonly expiresAt: string;
}

interface ProjectLockError extends Error {
  readonly code: ProjectLockErrorCode;
  readonly retryable: boolean;
  readonly cause?: unknown;
  readonly context?: Record<string, unknown>;
}

interface ProjectLockReadonlyInfo {
  readonly reason: ProjectLockErrorCode;
  readonly lastError?: ProjectLockError;
}

type ProjectLockEvent =
  | { type: 'lock:attempt'; strategy: ProjectLockStrategy; retry: number }
  | { type: 'lock:acquired'; lease: ProjectLockLease }
  | { type: 'lock:renew-scheduled'; lease: ProjectLockLease; nextHeartbeatInMs: number }
  | { type: 'lock:renewed'; lease: ProjectLockLease }
  | { type: 'lock:release-requested'; lease: ProjectLockLease }
  | { type: 'lock:released'; leaseId: string }
  | { type: 'lock:readonly-entered'; info: ProjectLockReadonlyInfo };

interface ProjectLockApi {
  acquireProjectLock(opts?: AcquireLockOptions): Promise<ProjectLockLease>;
  renewProjectLock(lease: ProjectLockLease): Promise<ProjectLockLease>;
  releaseProjectLock(lease: ProjectLockLease): Promise<void>;
  withProjectLock<T>(fn: (lease: ProjectLockLease) => Promise<T>, opts?: AcquireLockOptions): Promise<T>;
  subscribeLockEvents(listener: (event: ProjectLockEvent) => void): () => void;
}

export const api: ProjectLockApi = locks;

// A lease of the four fields is one, wherever the application has kept it.
export async function keep(lease: ProjectLockLease): Promise<string> {
  const { leaseId, strategy, acquiredAt, expiresAt } = await locks.renewProjectLock(lease);
  await locks.releaseProjectLock({ leaseId, strategy, acquiredAt, expiresAt });
  return expiresAt;
}

// A switch over the seven events is complete, with the author's type and with the module's.
export function shown(event: ProjectLockEvent): string {
  switch (event.type) {
    case 'lock:attempt': return `${event.strategy} ${event.retry}`;
    case 'lock:acquired': case 'lock:renewed': case 'lock:release-requested': return event.lease.leaseId;
    case 'lock:renew-scheduled': return `${event.nextHeartbeatInMs}`;
    case 'lock:released': return event.leaseId;
    case 'lock:readonly-entered': return event.info.reason;
    default: {
      const none: never = event;
      return none;
    }
  }
}

export const stop: () => void = locks.subscribeLockEvents(shown);
export const state = (event: locks.ProjectLockStateEvent): string => shown(event);
