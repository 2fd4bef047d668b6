import type { IncomingMessage, ServerResponse } from 'node:http';

/** One attempt at one analysis. */
export interface Job<Input = any, State = any> {
  /** The id of the document. */
  readonly analysisId: string;
  /** The fencing token. It grows with each run, so systems that you write to can refuse an older one. */
  readonly lockToken: number;
  /** The number of this attempt, from 1. */
  readonly attempt: number;
  readonly input: Input;
  /** The newest checkpoint of earlier attempts; null: none. Continue from it. */
  readonly resume: State | null;
  /** True in a self-test, in which no side effect can begin. */
  readonly selfTest: boolean;
  /**
   * Aborts when the worker ends this run: its deadline has passed, its lock is lost, or the worker stops.
   * A program has 5 s from then. Without a look at signal, SIGTERM ends a program at once.
   */
  readonly signal: AbortSignal;

  /** Reports the part of the work that is done, from 0 to 1, and what is done now. */
  report(progress: number, message?: string): void;
  /**
   * Reports the state from which a later attempt continues: JSON of up to 256 KiB; null deletes it. With wait,
   * a program's promise resolves when the checkpoint is committed, which takes up to a second, or rejects with
   * NotCommitted. A service gets no such answer, so there it does not wait.
   */
  checkpoint(value: State | null, options?: { wait?: boolean }): Promise<void>;
  /**
   * Calls act, a side effect that must not repeat, and resolves to its result, which must be plain JSON. Later
   * attempts get the recorded result instead. name is new for each effect of a run: letters, digits, "_", "-".
   *
   * act throws NotDone if it knows that the effect did not happen; after any other error it may have happened.
   * If an earlier attempt has begun the effect and its end is unknown, once calls find, which resolves to the
   * result, or to undefined if the effect did not happen. Without find, the analysis becomes FAILED with the
   * code effect_uncertain. Give the provider the key with each request.
   *
   * In a service, each effect ends the call, and the worker calls again at once: analyze starts from the beginning,
   * with the newest checkpoint as resume. Do not catch the error asked, with which once leaves analyze.
   */
  once<T>(name: string, act: (key: string) => T | Promise<T>, options?: {
    find?: (key: string) => Promise<T | undefined>;
  }): Promise<T>;
}

/** Does the work of one analysis. What it resolves to is the result; undefined is null. */
export type Analyze<Input = any, State = any> = (job: Job<Input, State>) => unknown;

/**
 * Is a program: ANALYZER=exec:node analyzer.mjs. It reads the job, calls analyze, prints the result and exits. What
 * console.log prints during analyze goes to standard error. An error that is not Failed is retried.
 */
export function run<Input = any, State = any>(analyze: Analyze<Input, State>): Promise<never>;

/**
 * Returns a handler for Express and node:http that answers the worker's POST: ANALYZER=http://…. An error that
 * is not Failed is logged and answered 500, and retried. When the worker has closed the connection, the next
 * report and the next checkpoint throw.
 */
export function endpoint<Input = any, State = any>(
  analyze: Analyze<Input, State>,
): (request: IncomingMessage, response: ServerResponse) => Promise<void>;

/** An error with a code: letters, digits, "_" and "-", at most 64. The analysis is retried, unless it is permanent. */
export class Failed extends Error {
  constructor(code: string, message: string, options?: {
    /** A retry cannot help: the analysis becomes FAILED. */
    permanent?: boolean;
    /** Retry after so many seconds, 1 to 43,200. Such an attempt is not counted. */
    retryAfter?: number;
    cause?: unknown;
  });
  readonly code: string;
  readonly permanent: boolean;
  readonly retryAfter: number | undefined;
}

/** The worker did not commit a checkpoint or a side effect. With unknown, it may have committed it. */
export class NotCommitted extends Failed {
  constructor(message: string, unknown?: boolean);
  readonly unknown: boolean;
}

/** A side effect happened and is recorded, but its result, the value, could not be stored. */
export class NotStored extends Failed {
  constructor(name: string, reason: string, value: unknown);
  readonly value: unknown;
}

/** Tells once that its side effect did not happen. once then throws the cause. */
export class NotDone extends Error {
  constructor(cause?: unknown);
}

export interface SubmitOptions {
  /** A Firestore of @google-cloud/firestore or firebase-admin. */
  firestore: { collection(path: string): any };
  /** A CloudTasksClient of @google-cloud/tasks. */
  tasks: { createTask(request: any): Promise<any> };
  /** ANALYSES_COLLECTION by default, or 'analyses'. */
  collection?: string;
  /** TASK_QUEUE by default: projects/P/locations/L/queues/Q. */
  queue?: string;
  /** TASK_TARGET_URL by default: the worker's base URL. */
  targetUrl?: string;
  /** TASK_CALLER by default: the service account whose token the task carries; none with TASK_AUTH=none. */
  caller?: string;
  /** TASK_AUDIENCE by default, or targetUrl. */
  audience?: string;
  /** Seconds: the worker's RUN_TIMEOUT and a minute, 1560 by default, at most 1800. */
  dispatchDeadline?: number;
}

export interface Submission {
  /** This call created the document. */
  created: boolean;
  /** This call or an earlier one created its task; false: the analysis is finished. */
  enqueued: boolean;
  /** QUEUED, PROCESSING, READY or FAILED. */
  status: string;
}

/**
 * Creates the document id with an input, and the task that delivers it to the worker. Derive the id from the
 * request, and a repeated request changes nothing. Rejects with OtherInput, NotEnqueued, a TypeError, or an error of
 * Google's client for Firestore, after which the document may exist: submit again.
 */
export function submit(id: string, input: unknown, options: SubmitOptions): Promise<Submission>;

/** A document with this id exists with another input. Nothing is changed. */
export class OtherInput extends Error {}

/** The document exists, but its task may not. Submit again, or leave it to recovery. */
export class NotEnqueued extends Error {}
