// submit enqueues one analysis: it creates the document, and then the task that delivers it.
//
//   await submit('invoice-1007', { pages: 40 }, { firestore, tasks });
//
// firestore and tasks are Google's clients, which your application has. index.d.mts has the other options.
import { createHash, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';

const maxTries = 6; // of createTask, over about ten seconds
const alreadyExists = 6; // gRPC's number for the status
// CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, ABORTED, INTERNAL, UNAVAILABLE, and no status at all
const transient = [1, 2, 4, 8, 10, 13, 14, undefined];

/** OtherInput: a document with this id exists with another input. Nothing is changed. */
export class OtherInput extends Error {
  name = 'OtherInput';
}

/** NotEnqueued: the document exists, but its task may not. Submit again, or leave it to recovery. */
export class NotEnqueued extends Error {
  name = 'NotEnqueued';
}

/** submit creates the document id with an input, unless it exists, and enqueues its delivery. */
export async function submit(id, input, options) {
  const o = settings(options);
  const ref = o.firestore.collection(o.collection).doc(id);
  const wanted = plain(input);
  const bookedTask = taskName('submit', id, randomUUID());

  const before = await ref.get();
  let data = before.data();
  if (!data) {
    const now = before.readTime; // Firestore's clock
    data = { status: 'QUEUED', input: wanted, attempts: 0, createdAt: now, updatedAt: now, bookedTask };
    try {
      await ref.create(data);
    } catch (err) {
      if (err.code !== alreadyExists) throw err;
      data = (await ref.get()).data() ?? {}; // another call was faster, or the reply to this one was lost
    }
  }

  const created = data.bookedTask === bookedTask;
  const { status } = data;
  if (!isDeepStrictEqual(plain(data.input), wanted)) throw new OtherInput(`${id} exists with another input`);
  if (status === 'READY' || status === 'FAILED') return { created, enqueued: false, status };
  let name = data.bookedTask;
  if (typeof name !== 'string' || !/^[\w-]{1,500}$/.test(name)) {
    if (data.lockOwner) return { created, enqueued: true, status }; // the task that runs it was created
    name = taskName('submit', id, iso(data.createdAt));
  }
  try {
    await enqueue(o, name, id);
  } catch (cause) {
    throw new NotEnqueued(`${id} exists, but its task may not: ${cause.message}`, { cause });
  }
  return { created, enqueued: true, status };
}

function settings({ firestore, tasks, ...options }) {
  const { env } = process;
  const {
    collection = env.ANALYSES_COLLECTION || 'analyses', queue = env.TASK_QUEUE, targetUrl = env.TASK_TARGET_URL,
    caller = env.TASK_CALLER, audience = env.TASK_AUDIENCE, dispatchDeadline = 26 * 60, ...others
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

// enqueue creates the task of that name, unless it exists: by an earlier call, or an earlier try of this one.
async function enqueue({ tasks, queue, base, oidcToken, dispatchDeadline }, name, id) {
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
  for (let tries = 1; ; tries++) {
    try {
      await tasks.createTask({ parent: queue, task });
      return;
    } catch (err) {
      if (err.code === alreadyExists) return;
      if (tries === maxTries || !transient.includes(err.code)) throw err;
      await sleep(200 * 2 ** tries * (0.5 + Math.random() / 2));
    }
  }
}

// taskName hashes parts, each after its length, as the workers do: so all give a task the same name.
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
function plain(v = null) {
  return JSON.parse(JSON.stringify(v, (_, inner) => (typeof inner === 'bigint' ? Number(inner) : inner)));
}

// iso returns a Timestamp or a text as documents store times. Timestamp.toDate would round it.
function iso(at) {
  const stored = at?.seconds === undefined ? at : at.seconds * 1000 + Math.floor(at.nanoseconds / 1e6);
  const time = new Date(stored);
  return Number.isNaN(time.getTime()) ? '' : time.toISOString();
}
