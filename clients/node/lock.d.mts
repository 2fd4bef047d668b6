import type { Firestore } from '@google-cloud/firestore';

export interface Options {
  /** The collection of the documents; 'analyses' by default, as ANALYSES_COLLECTION of the workers. */
  collection?: string;
  /** Set it if the workers have KEEP_FINISHED: then tokens begin at the time of the document's creation. */
  keepFinished?: boolean;
  /** Gets the warning of a release that failed; console.warn by default. */
  warn?: (message: string, err: unknown) => void;
}

export type Acquisition =
  | {
      acquired: true;
      reason?: never;
      /** The fencing token. It grows with each acquisition, so systems that you write to can refuse an older one. */
      token: number;
      /** The number of this attempt, from 1. */
      attempt: number;
      /** When the lock expires by Firestore's clock, ISO 8601. */
      expiresAt: string;
    }
  | { acquired: false; reason: 'already_finished'; expiresAt?: never }
  | { acquired: false; reason: 'locked'; expiresAt: string };

export interface AnalysisLocks {
  /**
   * Acquires the lock for ttlSec seconds (300 by default, 1 to 43,200). lockOwner must be new for each delivery.
   * Rejects with LockError 'not_found' or 'malformed', a TypeError, or Firestore's error.
   */
  acquireAnalysisLock(analysisId: string, lockOwner: string, ttlSec?: number): Promise<Acquisition>;
  /**
   * Makes the lock expire ttlSec seconds from now, also if it has expired and nobody has taken it.
   * Rejects with LockError 'lost' if it is another owner's or the analysis is finished: stop the run.
   */
  refreshAnalysisLock(analysisId: string, lockOwner: string, ttlSec?: number): Promise<void>;
  /** Frees the lock if it is lockOwner's. It never rejects: a failure is a warning, and the lock expires. */
  releaseAnalysisLock(analysisId: string, lockOwner: string): Promise<void>;
  /**
   * Makes the analysis READY with a result, or FAILED with an error, and frees the lock, in one commit. Resolves
   * to the status it wrote: a result that Firestore refuses makes it FAILED with the code result_invalid.
   * Rejects with LockError 'lost' if the lock is another owner's or the analysis is finished: then nothing is written.
   * Rejects with a TypeError for an outcome that is neither: then nothing is written, and the lock is still held.
   */
  finishAnalysis(analysisId: string, lockOwner: string, outcome: Outcome): Promise<'READY' | 'FAILED'>;
}

/** A result is any value that a Firestore document can have; null if there is none. undefined is a TypeError. */
export type Outcome = { result: unknown; error?: never } | { error: { code: string; message: string }; result?: never };

/**
 * Returns the functions for the documents of one collection. They may be called at the same time.
 * Throws a TypeError for an unknown option or an impossible value.
 */
export function analysisLocks(firestore: Firestore, options?: Options): AnalysisLocks;

export class LockError extends Error {
  readonly code: 'not_found' | 'malformed' | 'lost';
  constructor(code: LockError['code'], message: string);
}
