// submit enqueues one analysis: it creates the document, and then the task that delivers it.
//
//   await submit('invoice-1007', { pages: 40 }, { firestore, tasks });
//
// firestore and tasks are Google's clients, as your application has them. README.md has the options.
import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';

const maxTries = 5; // of createTask; then recovery enqueues the document within one TTL and a minute
const day = 24 * 3600 * 1000; // ms
const alreadyExists = 6; // gRPC's number for the status
// CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL, UNAVAILABLE, and no status at all
const transient = [1, 2, 4, 8, 10, 13, 14, undefined];

/** SubmitError tells by its code what is wrong: 'other_input' or 'not_booked'. */
export class SubmitError extends Error {
  constructor(code, message, cause) {
    super(message, { cause });
    this.name = 'SubmitError';
    this.code = code;
  }
}

/** submit creates the document id with an input, unless it exists, and enqueues its delivery. */
export async function submit(id, input, options) {
  const o = settings(options);
  const ref = o.firestore.collection(o.collection).doc(id);
  const bookedTask = taskName('submit', id, randomUUID());
  const wanted = plain(input ?? null);

  let snapshot = await ref.get();
  let data = snapshot.data();
  if (!data) {
    const now = snapshot.readTime; // Firestore's clock
    data = { status: 'QUEUED', input: wanted, attempts: 0, createdAt: now, updatedAt: now, bookedTask };
    try {
      await ref.create(data);
    } catch (err) {
      if (err.code !== alreadyExists) throw err;
      snapshot = await ref.get(); // another call was faster, or the reply to this one was lost
      data = snapshot.data() ?? {};
    }
  }

  const created = data.bookedTask === bookedTask;
  if (!isDeepStrictEqual(plain(data.input ?? null), wanted)) {
    throw new SubmitError('other_input', `the document ${id} exists with another input`);
  }
  const { status } = data;
  if (status === 'READY' || status === 'FAILED') return { created, booked: false, already: false, status };
  try {
    return { created, booked: true, already: await book(o, id, data, snapshot), status };
  } catch (err) {
    const message = `the document ${id} exists, but its task may not: call submit again, or leave it to recovery`;
    throw new SubmitError('not_booked', `${message}: ${err.message}`, err);
  }
}

function settings(options) {
  const { env } = process;
  const {
    firestore, tasks, collection = env.ANALYSES_COLLECTION || 'analyses', queue = env.TASK_QUEUE,
    targetUrl = env.TASK_TARGET_URL, caller = env.TASK_CALLER, audience = env.TASK_AUDIENCE,
    dispatchDeadline = 26 * 60, ...others
  } = options;
  const [unknown] = Object.keys(others);
  if (unknown) throw new TypeError(`there is no option ${unknown}`);
  if (typeof firestore?.collection !== 'function') throw new TypeError('firestore must be a Firestore');
  if (typeof tasks?.createTask !== 'function') throw new TypeError('tasks must be a CloudTasksClient');
  if (!queue) throw new TypeError('set TASK_QUEUE or the option queue: projects/P/locations/L/queues/Q');
  if (!targetUrl) throw new TypeError("set TASK_TARGET_URL or the option targetUrl: the worker's base URL");
  const base = targetUrl.replace(/\/+$/, '');
  const oidcToken = caller ? { serviceAccountEmail: caller, audience: audience || base } : undefined;
  return { firestore, tasks, collection, queue, base, oidcToken, dispatchDeadline };
}

// book creates the task that delivers a document, under a name that stays the same. It returns whether that
// task, or a delivery that runs now, exists already.
async function book({ tasks, queue, base, oidcToken, dispatchDeadline }, id, data, snapshot) {
  const now = millis(snapshot.readTime);
  let name = data.bookedTask;
  if (typeof name !== 'string' || !/^[\w-]{1,500}$/.test(name)) { // it has run, or another program created it
    if (data.lockOwner && millis(data.lockExpiresAt) > now) return true;
    const createdAt = millis(data.createdAt);
    const plausible = createdAt > 365 * day && createdAt < now + day;
    name = taskName('submit', id, new Date(plausible ? createdAt : millis(snapshot.createTime)).toISOString());
  }

  const task = {
    name: `${queue}/tasks/${name}`,
    dispatchDeadline: { seconds: dispatchDeadline },
    httpRequest: {
      httpMethod: 'POST',
      url: `${base}/internal/tasks/analysis`,
      headers: { 'Content-Type': 'application/json' },
      body: Buffer.from(JSON.stringify({ analysis_id: id })),
      oidcToken,
    },
  };
  const next = millis(data.nextAttemptAt);
  if (next > now) task.scheduleTime = { seconds: Math.floor(next / 1000), nanos: (next % 1000) * 1e6 };

  for (let tries = 1; ; tries++) {
    try {
      await tasks.createTask({ parent: queue, task });
      return false;
    } catch (err) {
      if (err.code === alreadyExists) return true; // by an earlier call, or an earlier try of this one
      if (tries === maxTries || !transient.includes(err.code)) throw err;
      await sleep(100 * 2 ** tries * (0.5 + Math.random() / 2));
    }
  }
}

// taskName hashes parts, each after its length, as the workers do: then all name the same task alike.
function taskName(...parts) {
  const hash = createHash('sha256');
  for (const part of parts) {
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(Buffer.byteLength(part)));
    hash.update(length).update(part);
  }
  return hash.digest('hex');
}

// plain returns a value as decoded from its JSON. A client with useBigInt reads integers as BigInt.
function plain(v) {
  return JSON.parse(JSON.stringify(v, (_, inner) => (typeof inner === 'bigint' ? Number(inner) : inner)));
}

// millis returns a stored time: a Timestamp, a text or a number. It is NaN, or 0, if there is none.
function millis(v) {
  return v?.seconds === undefined ? new Date(v).getTime() : v.seconds * 1000 + Math.floor(v.nanoseconds / 1e6);
}
