// submit on `taskguard emulator`, beside the command `taskguard submit`, which is TASKGUARD.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { after, test } from 'node:test';
import { Firestore, Timestamp } from '@google-cloud/firestore';
import { CloudTasksClient } from '@google-cloud/tasks';
import { grpc } from 'google-gax';
import { submit } from 'taskguard';

const { CLOUD_TASKS_EMULATOR_HOST, TASK_QUEUE, TASKGUARD } = process.env;
const [apiEndpoint, port] = CLOUD_TASKS_EMULATOR_HOST.split(':');
const firestore = new Firestore();
const tasks = new CloudTasksClient({ apiEndpoint, port: Number(port), sslCreds: grpc.credentials.createInsecure() });
const clients = { firestore, tasks };
const limited = { timeout: 120_000 };
after(() => Promise.all([firestore.terminate(), tasks.close()]));

// inGo submits with the product's own command, and returns whether this call has enqueued it.
function inGo(id, input) {
  const args = ['submit', '--json', '--id', id, '--input', JSON.stringify(input)];
  return JSON.parse(execFileSync(TASKGUARD, args, { encoding: 'utf8' })).booked === 'now';
}

async function created(id) {
  const data = (await firestore.doc(`analyses/${id}`).get()).data();
  const [{ name, createTime, scheduleTime, httpRequest: { body, ...request }, ...task }] = (await queued()).slice(-1);
  assert.equal(name, `${TASK_QUEUE}/tasks/${data.bookedTask}`);
  assert.deepEqual(JSON.parse(body), { analysis_id: id });
  assert.deepEqual(data.updatedAt, data.createdAt);
  assert.ok(Math.abs(data.createdAt.toMillis() - Date.now()) < 60_000);
  return { task: { ...task, ...request }, document: { ...data, createdAt: 0, updatedAt: 0, bookedTask: '' } };
}

async function queued() { // in the order of their creation
  const [all] = await tasks.listTasks({ parent: TASK_QUEUE, responseView: 'FULL' });
  const at = ({ createTime: { seconds, nanos } }) => Number(seconds) + nanos / 1e9;
  return all.sort((a, b) => at(a) - at(b));
}

test('submit writes the document and the task that the command writes', limited, async () => {
  await tasks.pauseQueue({ name: TASK_QUEUE });
  const input = { text: 'é', pages: 40, rate: 0.5, tags: ['a', null, true], more: {} };
  const queue = { tries: 0 };
  queue.createTask = async (request) => {
    queue.tries += 1;
    if (queue.tries === 1) throw Object.assign(new Error('unavailable'), { code: 14 });
    await tasks.createTask(request);
    if (queue.tries === 2) throw new Error('the reply is lost');
  };
  const first = await submit('in-node', input, { firestore, tasks: queue });
  assert.deepEqual([first, queue.tries], [{ created: true, enqueued: true, status: 'QUEUED' }, 3]);
  const inNode = await created('in-node');
  assert.equal(inGo('in-node', input), false);

  assert.equal(inGo('in-go', input), true);
  assert.deepEqual(await created('in-go'), inNode);
  const again = await submit('in-go', input, clients);
  assert.deepEqual(again, { created: false, enqueued: true, status: 'QUEUED' });
  assert.equal((await queued()).length, 2);

  // Without a name in the document, both name the task alike.
  const createdAt = new Timestamp(Math.floor(Date.now() / 1000), 123_999_000);
  await firestore.doc('analyses/unnamed').create({ status: 'QUEUED', input, createdAt, updatedAt: createdAt });
  await submit('unnamed', input, clients);
  assert.equal(inGo('unnamed', input), false);
});

test('submit leaves other documents and tells what is wrong', limited, async () => {
  const put = (id, fields) => firestore.doc(`analyses/${id}`).create({ input: { n: 1 }, ...fields });
  await put('finished', { status: 'READY' });
  await put('running', { status: 'PROCESSING', lockOwner: 'w/1/x' });
  const before = (await queued()).length;
  assert.equal((await submit('finished', { n: 1 }, clients)).enqueued, false);
  assert.equal((await submit('running', { n: 1 }, clients)).enqueued, true);
  await assert.rejects(submit('running', { n: 2 }, clients), { name: 'OtherInput' });
  const refusing = { createTask: () => Promise.reject(Object.assign(new Error('refused'), { code: 7 })) };
  await assert.rejects(submit('refused', null, { firestore, tasks: refusing }), { name: 'NotEnqueued' });
  assert.equal((await firestore.doc('analyses/refused').get()).get('status'), 'QUEUED');
  assert.equal((await queued()).length, before);
  for (const wrong of [{ colection: 'x' }, { queue: '' }, { targetUrl: '' }, { tasks: 1 }, { firestore: 1 }]) {
    await assert.rejects(submit('none', 1, { ...clients, ...wrong }), TypeError, JSON.stringify(wrong));
  }
});
