// The analysis lock for a worker in Node. It shares documents with taskguard's own workers:
//
//   const { acquireAnalysisLock, releaseAnalysisLock } = analysisLocks(new Firestore());
//
// Each call is one Firestore transaction, optimistic or pessimistic. Firestore's time of the reading decides
// whether a lock has expired, and is what the document stores. This machine's clock is never asked. README.md
// has the rest.
import { FieldValue, Timestamp } from '@google-cloud/firestore'; // or 'firebase-admin/firestore'

const defaultTTL = 300; // seconds
const maxTTL = 12 * 3600; // seconds
const maxAhead = 24 * 3600 * 1000; // a stored time that is further ahead is no time of a lock

// The limits of the history: a decision reads it, so it must stay small.
const maxAttempts = 10;
const maxHistoryBytes = 5 << 10;
const endBytes = 1152; // room for the end of the last attempt, and for an operator's changes

const invalidArgument = 3; // the gRPC status of a write that Firestore will never accept

/** LockError tells by its code why a call could not do what it is for: 'not_found', 'malformed' or 'lost'. */
export class LockError extends Error {
  constructor(code, message) {
    super(message);
    this.name = 'LockError';
    this.code = code;
  }
}

/** analysisLocks returns the functions for the documents of a collection. */
export function analysisLocks(firestore, options = {}) {
  const { collection = 'analyses', keepFinished = false, warn = console.warn, ...others } = options;
  checkSettings(firestore, { collection, keepFinished, warn }, others);

  // transact calls decide with a reading of the document, writes the fields that it returns, if any, and
  // returns its answer. It calls decide again if another program has changed the document since, and if the
  // outcome of a write is unknown. If Firestore has refused the fields, decide also gets that error, and
  // returns others. The first two tries commit on the condition that the document is as it was
  // read. That keeps no lock in Firestore: a process that dies in between blocks nobody, and a skip is one read.
  async function transact(analysisId, decide) {
    const ref = firestore.collection(collection).doc(analysisId);
    let refusal;
    for (let tries = 0; tries < 2; tries++) {
      const snapshot = await ref.get();
      const { fields, answer } = decide(snapshot, refusal);
      if (!fields) return answer;
      try {
        await ref.update(fields, { lastUpdateTime: snapshot.updateTime });
        return answer;
      } catch (err) {
        // The next reading shows whether it was written, and the last try throws its error.
        if (err.code === invalidArgument) refusal = err;
      }
    }
    return firestore.runTransaction(async (tx) => {
      const { fields, answer } = decide(await tx.get(ref), refusal);
      if (fields) tx.update(ref, fields);
      return answer;
    });
  }

  async function acquireAnalysisLock(analysisId, lockOwner, ttlSec = defaultTTL) {
    check(analysisId, lockOwner, ttlSec);
    let tried; // the token that an earlier try has perhaps written

    return transact(analysisId, (snapshot) => {
      const doc = read(snapshot, ttlSec);
      if (doc.finished) return { answer: { acquired: false, reason: 'already_finished' } };
      if (tried && doc.owner === lockOwner && doc.token === tried) return { answer: acquisition(doc) };
      if (doc.owner && doc.now < doc.expiresAt) {
        return { answer: { acquired: false, reason: 'locked', expiresAt: iso(doc.expiresAt) } };
      }

      const next = taken(doc, lockOwner, ttlSec, keepFinished);
      tried = next.token;
      return { fields: next.fields, answer: acquisition(next) };
    });
  }

  async function refreshAnalysisLock(analysisId, lockOwner, ttlSec = defaultTTL) {
    check(analysisId, lockOwner, ttlSec);
    await transact(analysisId, (snapshot) => {
      const doc = read(snapshot, ttlSec);
      lose(doc, analysisId, lockOwner);
      return { fields: { ...period(doc.now, ttlSec), updatedAt: updatedAt(doc) } };
    });
  }

  async function finishAnalysis(analysisId, lockOwner, outcome) {
    check(analysisId, lockOwner, defaultTTL);
    checkOutcome(outcome);
    const problem = unstorable(analysisId, outcome);

    return transact(analysisId, (snapshot, refusal = problem) => {
      const doc = read(snapshot, defaultTTL);
      if (doc.finished && doc.data.finishedBy === lockOwner) return { answer: doc.data.status }; // by an earlier try
      lose(doc, analysisId, lockOwner);
      const fields = finished(doc, refusal ? { error: invalidResult(refusal) } : outcome);
      return { fields, answer: fields.status };
    });
  }

  // unstorable returns the error with which Firestore's client refuses a result, if it does. It sends nothing.
  function unstorable(analysisId, { result = null }) {
    try {
      firestore.batch().update(firestore.collection(collection).doc(analysisId), { result });
      // The client notices these only when it commits.
      if (hasFunction(result)) return new Error('it has a function or a symbol');
    } catch (err) {
      return err;
    }
  }

  // A release never rejects: the lock that it leaves behind expires.
  async function releaseAnalysisLock(analysisId, lockOwner) {
    try {
      check(analysisId, lockOwner, defaultTTL);
      await transact(analysisId, (snapshot) => {
        if (!snapshot.exists) return {};
        const doc = read(snapshot, defaultTTL);
        return doc.owner === lockOwner ? { fields: released(doc) } : {};
      });
    } catch (err) {
      warn(`the lock on ${analysisId} was not released, and expires instead:`, err);
    }
  }

  return { acquireAnalysisLock, refreshAnalysisLock, releaseAnalysisLock, finishAnalysis };
}

// lose throws 'lost' unless the lock is lockOwner's.
function lose(doc, analysisId, lockOwner) {
  if (!doc.finished && doc.owner === lockOwner) return;
  throw new LockError('lost', `the lock on ${analysisId} is not ${lockOwner}'s any more: stop the run`);
}

function check(analysisId, lockOwner, ttlSec) {
  if (typeof analysisId !== 'string' || !analysisId || analysisId.includes('/')) {
    throw new TypeError(`analysisId is ${JSON.stringify(analysisId)}: want the id of a document, without slashes`);
  }
  if (typeof lockOwner !== 'string' || !lockOwner) {
    throw new TypeError('lockOwner is empty: want a name that is new for each delivery');
  }
  if (!(ttlSec >= 1 && ttlSec <= maxTTL)) throw new TypeError(`ttlSec is ${ttlSec}: want 1 to ${maxTTL} seconds`);
}

function checkSettings(firestore, { collection, keepFinished, warn }, others) {
  const [unknown] = Object.keys(others);
  if (unknown) throw new TypeError(`unknown option ${unknown}: want collection, keepFinished or warn`);
  if (typeof firestore?.runTransaction !== 'function') throw new TypeError('firestore is no Firestore client');
  if (typeof collection !== 'string' || !collection) throw new TypeError('collection is no name of a collection');
  if (typeof keepFinished !== 'boolean') throw new TypeError('keepFinished is neither true nor false');
  if (typeof warn !== 'function') throw new TypeError('warn is no function');
}

// checkOutcome refuses what is neither a result nor an error: the analysis would be READY with null.
function checkOutcome(outcome) {
  const { result, error, ...others } = outcome ?? {};
  const [unknown] = Object.keys(others);
  if (unknown) throw new TypeError(`unknown outcome ${unknown}: want result or error`);
  if ((result === undefined) === (error === undefined)) {
    throw new TypeError('want exactly one of result and error; an analysis without a result has the result null');
  }
  if (error === undefined) return;

  const named = typeof error?.code === 'string' && error.code && typeof error.message === 'string';
  const known = (key) => key === 'code' || key === 'message';
  const plain = error instanceof Error || (named && Object.keys(error).every(known));
  if (!named || !plain) throw new TypeError('want {code, message} as the error, both strings, and nothing else');
}

// invalidResult returns the error of an analysis whose result Firestore does not accept.
const invalidResult = ({ message }) => ({ code: 'result_invalid', message: `the result cannot be stored: ${message}` });

// hasFunction looks into arrays and plain objects.
function hasFunction(value) {
  if (typeof value !== 'object' || value === null) return typeof value === 'function' || typeof value === 'symbol';
  const plain = Array.isArray(value) || [Object.prototype, null].includes(Object.getPrototypeOf(value));
  return plain && Object.values(value).some(hasFunction);
}

// read decodes what a decision needs. Times are milliseconds since 1970; undefined: none that can be used.
function read(snapshot, ttlSec) {
  if (!snapshot.exists) throw new LockError('not_found', `there is no document ${snapshot.ref.path}`);
  const data = snapshot.data();
  const now = millis(snapshot.readTime);
  const credible = (value) => {
    const time = parseTime(value);
    return time - now <= maxAhead ? time : undefined;
  };

  const token = integer(data.lockToken ?? 0);
  const finished = data.status === 'READY' || data.status === 'FAILED';
  if (!finished && !(token >= 0 && token < Number.MAX_SAFE_INTEGER)) {
    const problem = 'lockToken is no integer below 2^53 - 1: taskguard unlock replaces what is no integer';
    throw new LockError('malformed', `${snapshot.ref.path}: ${problem}`);
  }

  // A lock without an expiry has expired. One whose expiry cannot be read expires one TTL after its heartbeat,
  // or else after the document's last update.
  const heartbeatAt = credible(data.lockHeartbeatAt);
  const assumed = (heartbeatAt ?? millis(snapshot.updateTime)) + ttlSec * 1000;
  const expiresAt = credible(data.lockExpiresAt ?? 0) ?? assumed;
  const owner = typeof (data.lockOwner ?? '') === 'string' ? data.lockOwner : '(unreadable)';
  return {
    data, now, finished, owner, token, heartbeatAt, expiresAt,
    attempts: Math.max(0, integer(data.attempts ?? 0) || 0),
    startedAt: credible(data.startedAt),
    createTime: snapshot.createTime,
    history: Array.isArray(data.history) ? data.history.filter((entry) => entry && typeof entry === 'object') : [],
  };
}

function acquisition({ token, attempts, expiresAt }) {
  return { acquired: true, token, attempt: attempts, expiresAt: iso(expiresAt) };
}

// taken returns the lock after an acquisition, and the fields that record it.
function taken(doc, lockOwner, ttlSec, keepFinished) {
  // With KEEP_FINISHED, Firestore may have deleted a document with the same id and a higher token.
  const last = doc.token || (keepFinished ? millis(doc.createTime) * 1000 - 1 : 0);
  const token = last + 1;
  const attempts = doc.attempts + 1;
  const crash = crashed(doc);
  const begin = { attempt: attempts, token, owner: lockOwner, startedAt: iso(doc.now) };

  const fields = {
    lockOwner, lockToken: token, attempts, ...period(doc.now, ttlSec), updatedAt: updatedAt(doc),
    history: bounded([...crash.history, begin]),
    nextAttemptAt: FieldValue.delete(), bookedTask: FieldValue.delete(), expireAt: FieldValue.delete(),
    starts: FieldValue.delete(),
  };
  if (crash.message) fields.lastError = { code: 'crashed', message: crash.message };
  if (!doc.data.status || doc.data.status === 'QUEUED') fields.status = 'PROCESSING'; // another one is another program's
  if (doc.startedAt === undefined) fields.startedAt = iso(doc.now);
  return { fields, token, attempts, expiresAt: parseTime(fields.lockExpiresAt) };
}

// crashed gives the last attempt its end, if it has none: its worker died.
function crashed({ history, token, owner, heartbeatAt, now }) {
  const last = history.at(-1);
  if (!last || last.outcome) return { history };
  const signOfLife = owner && integer(last.token) === token ? heartbeatAt : undefined;
  const worker = String(last.owner ?? '').replace(/\/[^/]*$/, ''); // without the part that is the delivery's
  return {
    history: [...history.slice(0, -1), { ...last, outcome: 'crashed', endedAt: iso(signOfLife ?? now) }],
    message: `the worker ${worker} ended during attempt ${integer(last.attempt ?? 0)} and recorded no outcome`,
  };
}

// bounded returns the newest attempts that the document has room for.
function bounded(history) {
  let size = endBytes;
  const plain = (_, value) => (typeof value === 'bigint' ? Number(value) : value);
  const tooMuch = (entry, i) => {
    size += Buffer.byteLength(JSON.stringify(entry, plain));
    return i >= maxAttempts || size > maxHistoryBytes;
  };
  const cut = [...history].reverse().findIndex(tooMuch);
  return cut < 0 ? history : history.slice(history.length - cut);
}

// finished returns the fields that make the analysis READY with a result, or FAILED with an error.
function finished(doc, { result, error }) {
  if (!error) return { ...released(doc, 'READY'), status: 'READY', result, error: FieldValue.delete() };
  const { message } = error;
  const code = head(error.code, 64);
  return {
    ...released(doc, 'FAILED', { code, message: head(message, 256) }),
    status: 'FAILED', error: { code, message: head(message, 4096) }, result: FieldValue.delete(),
  };
}

// released returns the fields that free the lock of a run that has ended with a status. READY or FAILED, which
// the run may have written itself, is recorded as its finish.
function released(doc, status = doc.data.status, cause = {}) {
  const outcome = { READY: 'ready', FAILED: 'failed' }[status];
  const fields = {
    lockOwner: FieldValue.delete(), lockExpiresAt: FieldValue.delete(), lockHeartbeatAt: FieldValue.delete(),
    bookedTask: FieldValue.delete(), updatedAt: updatedAt(doc),
  };
  const last = doc.history.at(-1);
  if (last && !last.outcome && integer(last.token) === doc.token) {
    const end = { endedAt: iso(doc.now), outcome: outcome ?? 'retry', ...cause };
    fields.history = [...doc.history.slice(0, -1), { ...last, ...end }];
  }

  if (status === 'PROCESSING') fields.status = 'QUEUED';
  if (outcome) {
    Object.assign(fields, { finishedBy: doc.owner, nextAttemptAt: FieldValue.delete(), starts: FieldValue.delete() });
  }
  if (status === 'READY') {
    for (const name of ['lastError', 'progress', 'checkpoint']) fields[name] = FieldValue.delete();
  }
  return fields;
}

// head returns the beginning of a text that fits into so many bytes.
const head = (text, bytes) => new TextDecoder().decode(Buffer.from(text).subarray(0, bytes)).replace(/\uFFFD+$/, '');

function period(now, ttlSec) {
  return { lockHeartbeatAt: iso(now), lockExpiresAt: iso(Math.floor(now) + ttlSec * 1000) };
}

// updatedAt is a Timestamp if it was one, and else a string.
function updatedAt({ data, now }) {
  return isTimestamp(data.updatedAt) ? Timestamp.fromMillis(Math.floor(now)) : iso(now);
}

const iso = (time) => new Date(Math.floor(time)).toISOString();

const millis = (timestamp) => timestamp.seconds * 1000 + timestamp.nanoseconds / 1e6;

const isTimestamp = (value) => typeof value?.seconds === 'number' && typeof value.nanoseconds === 'number';

// integer returns NaN for what is no integer that a number can hold. A client with useBigInt reads BigInts.
function integer(value) {
  const n = typeof value === 'bigint' ? Number(value) : value;
  return Number.isSafeInteger(n) ? n : NaN;
}

// Date.parse would read a time without a zone as local, and much that is not ISO 8601.
const form = /^(\d{4})-?(\d\d)-?(\d\d)(?:T(\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?(?:Z|([+-]\d\d):?(\d\d))?)?$/i;

// parseTime reads ISO 8601, a Timestamp, and a number of milliseconds since 1970; undefined: it is none of them.
function parseTime(value) {
  if (isTimestamp(value)) return millis(value);
  if (typeof value === 'bigint') value = Number(value);
  if (typeof value === 'number') return value >= 0 && value <= 253402300799999 ? value : undefined;
  const parts = typeof value === 'string' && form.exec(value);
  if (!parts) return undefined;

  const [, year, month, day, hour = '00', minute = '00', second = '00', decimals = '0'] = parts;
  const [zone = '+00', zoneMinute = '00'] = parts.slice(8);
  const time = Date.parse(`${year}-${month}-${day}T${hour}:${minute}:${second}${zone}:${zoneMinute}`);
  return Number.isNaN(time) ? undefined : time + Number(`0.${decimals}`) * 1000;
}
