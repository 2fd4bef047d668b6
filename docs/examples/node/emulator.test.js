// Ordinary calls of Google's clients on `taskguard emulator`:
//
//   node --test emulator.test.js
//
// with the variables that it prints.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { FieldValue, Filter, Firestore, Timestamp } from '@google-cloud/firestore';
import { CloudTasksClient } from '@google-cloud/tasks';
import { grpc } from 'google-gax';

const { CLOUD_TASKS_EMULATOR_HOST, TASK_QUEUE } = process.env;
const location = TASK_QUEUE.replace(/\/queues\/.*/, '');
const [host, port] = CLOUD_TASKS_EMULATOR_HOST.split(':');
const firestore = new Firestore(); // reads GOOGLE_CLOUD_PROJECT and FIRESTORE_EMULATOR_HOST
const tasks = new CloudTasksClient({ apiEndpoint: host, port: Number(port), sslCreds: grpc.credentials.createInsecure() });

const fails = (code, message) => (err) => {
  assert.equal(err.code, grpc.status[code], err);
  assert.match(err.message, message);
  return true;
};

// The worker: it fails the first attempt of each task whose path is /fails-once.
const delivered = [];
const worker = createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  const retry = Number(request.headers['x-cloudtasks-taskretrycount']);
  delivered.push({ name: request.headers['x-cloudtasks-taskname'], url: request.url, body, retry });
  response.writeHead(request.url === '/fails-once' && retry === 0 ? 503 : 204).end();
  worker.emit('delivered');
});
const arrived = async (n) => {
  while (delivered.length < n) await once(worker, 'delivered');
  return delivered.splice(0);
};
let url;
before(async () => {
  await once(worker.listen(0, '127.0.0.1'), 'listening');
  url = `http://127.0.0.1:${worker.address().port}`;
});
after(async () => {
  worker.close();
  await Promise.all([firestore.terminate(), tasks.close()]);
});

const later = () => ({ seconds: Math.floor(Date.now() / 1000) + 3600 });
const create = async (task, path = '/') => {
  const httpRequest = { httpMethod: 'POST', url: url + path, body: Buffer.from('payload') };
  return (await tasks.createTask({ parent: TASK_QUEUE, task: { httpRequest, ...task } }))[0];
};

test('a task is dispatched to its address, and retried', async () => {
  const task = await create({}, '/fails-once');
  const delivery = { name: task.name.split('/').pop(), url: '/fails-once', body: 'payload', retry: 0 };
  assert.deepEqual(await arrived(2), [delivery, { ...delivery, retry: 1 }]);
});

test('a named task exists once', async () => {
  const name = `${TASK_QUEUE}/tasks/named`;
  await create({ name, scheduleTime: later() });
  await assert.rejects(create({ name }), fails('ALREADY_EXISTS', /exists/));
  const [task] = await tasks.getTask({ name, responseView: 'FULL' });
  assert.equal(task.httpRequest.body.toString(), 'payload');
  await tasks.deleteTask({ name });
  await assert.rejects(tasks.getTask({ name }), fails('NOT_FOUND', /task/));
});

test('a paused queue dispatches nothing, and lists its tasks in pages', async () => {
  await tasks.pauseQueue({ name: TASK_QUEUE });
  const names = [];
  for (let i = 0; i < 5; i++) names.push((await create({})).name);
  const [all] = await tasks.listTasks({ parent: TASK_QUEUE, pageSize: 2 });
  assert.deepEqual(all.map((t) => t.name), names);
  const [queues] = await tasks.listQueues({ parent: location });
  assert.ok(queues.some((q) => q.name === TASK_QUEUE && q.state === 'PAUSED'));
  assert.equal(delivered.length, 0);
  await tasks.resumeQueue({ name: TASK_QUEUE });
  await arrived(5);
});

test('documents', async () => {
  const doc = firestore.doc('docs/one');
  await doc.create({ n: 1, tags: ['a'], at: FieldValue.serverTimestamp(), nested: { x: 1, y: 2 } });
  await assert.rejects(doc.create({}), fails('ALREADY_EXISTS', /exists/));
  await assert.rejects(firestore.doc('docs/none').update({ n: 1 }), fails('NOT_FOUND', /none/));
  await doc.update({ n: FieldValue.increment(2), 'nested.x': FieldValue.delete(), tags: FieldValue.arrayUnion('a', 'b') });
  await doc.set({ merged: true }, { merge: true });
  const data = (await doc.get()).data();
  assert.ok(data.at instanceof Timestamp);
  delete data.at;
  assert.deepEqual(data, { n: 3, tags: ['a', 'b'], nested: { y: 2 }, merged: true });

  const stale = (await doc.get()).updateTime;
  await doc.update({ n: 4 });
  await assert.rejects(doc.delete({ lastUpdateTime: stale }), fails('FAILED_PRECONDITION', /version/));
  const [found, missing] = await firestore.getAll(doc, firestore.doc('docs/none'));
  assert.equal(found.get('n'), 4);
  assert.equal(missing.exists, false);
});

test('queries', async () => {
  const all = firestore.collection('all');
  const batch = firestore.batch();
  for (let n = 0; n < 6; n++) batch.set(all.doc(`d${n}`), { n, kind: n % 2 ? 'odd' : 'even', tags: [n] });
  await batch.commit();
  const ids = async (q) => (await q.get()).docs.map((d) => d.id).join(' ');
  assert.equal(await ids(all.where('kind', '==', 'odd').orderBy('n', 'desc').limit(2)), 'd5 d3');
  assert.equal(await ids(all.where('n', 'not-in', [0, 1, 2, 3])), 'd4 d5');
  assert.equal(await ids(all.where('tags', 'array-contains', 2)), 'd2');
  assert.equal(await ids(all.where('n', '==', null)), '');
  assert.equal(await ids(all.orderBy('n').startAfter(3).endBefore(5)), 'd4');
  assert.equal(await ids(all.orderBy('n').startAfter(await all.doc('d4').get())), 'd5');
  assert.equal(await ids(all.orderBy('n').limitToLast(2)), 'd4 d5');
  assert.equal(await ids(all.where(Filter.or(Filter.where('n', '==', 0), Filter.where('n', '==', 5)))), 'd0 d5');
  assert.deepEqual((await all.select('kind').limit(1).get()).docs[0].data(), { kind: 'even' });
  assert.equal((await all.where('kind', '==', 'odd').count().get()).data().count, 3);
});

test('transactions', async () => {
  const doc = firestore.doc('counters/one');
  await doc.set({ n: 0 });
  const add = () => firestore.runTransaction(async (tx) => {
    const n = (await tx.get(doc)).get('n');
    const others = await tx.get(firestore.collection('counters').where('n', '<', 0));
    tx.update(doc, { n: n + 1 + others.size });
  });
  await Promise.all([add(), add(), add()]);
  assert.equal((await doc.get()).get('n'), 3);
});

test('listeners', async () => {
  const seen = [];
  let heard;
  const stopDoc = firestore.doc('heard/one').onSnapshot((s) => { seen.push(s.get('n')); heard?.(); });
  const sizes = [];
  const stopQuery = firestore.collection('heard').where('n', '>', 1).onSnapshot((s) => { sizes.push(s.size); heard?.(); });
  const until = async (ready) => { while (!ready()) await new Promise((resolve) => { heard = resolve; }); };
  await until(() => seen.length === 1 && sizes.length === 1);
  await firestore.doc('heard/one').set({ n: 1 });
  await until(() => seen.length === 2);
  await firestore.doc('heard/one').update({ n: 2 });
  await until(() => seen.length === 3 && sizes.length === 2);
  await firestore.doc('heard/one').delete();
  await until(() => seen.length === 4 && sizes.length === 3);
  assert.deepEqual(seen, [undefined, 1, 2, undefined]);
  assert.deepEqual(sizes, [0, 1, 0]);
  stopDoc();
  stopQuery();
});

test('what is not emulated is UNIMPLEMENTED, with its name', async () => {
  const c = firestore.collection('all');
  const calls = {
    ListDocuments: () => c.listDocuments(),
    explain_options: () => c.explain(),
    maximum: () => c.doc('x').set({ n: FieldValue.maximum(1) }),
    UpdateQueue: () => tasks.updateQueue({ queue: { name: TASK_QUEUE } }),
  };
  for (const [name, call] of Object.entries(calls)) {
    await assert.rejects(call(), fails('UNIMPLEMENTED', new RegExp(name)), name);
  }
});
