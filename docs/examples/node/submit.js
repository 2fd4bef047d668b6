// Submits one analysis and waits for its result:
//
//   node submit.js ID TEXT
//
// with the variables that `taskguard local` or `terraform output -raw environment` prints.
import { randomUUID } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import { FieldValue, Firestore } from '@google-cloud/firestore';
import { CloudTasksClient } from '@google-cloud/tasks';
import { grpc } from 'google-gax';

const [id, text] = process.argv.slice(2);
const { CLOUD_TASKS_EMULATOR_HOST, TASK_CALLER, TASK_QUEUE, TASK_TARGET_URL } = process.env;

// It reads GOOGLE_CLOUD_PROJECT and FIRESTORE_EMULATOR_HOST itself.
const firestore = new Firestore({ databaseId: process.env.FIRESTORE_DATABASE ?? '(default)' });

// The client for Cloud Tasks does not read CLOUD_TASKS_EMULATOR_HOST: an emulator
// needs three options.
let options = {};
if (CLOUD_TASKS_EMULATOR_HOST) {
  const [host, port] = CLOUD_TASKS_EMULATOR_HOST.split(':');
  options = { apiEndpoint: host, port: Number(port), sslCreds: grpc.credentials.createInsecure() };
}
const tasks = new CloudTasksClient(options);

// 1. Create an order and its document in one transaction, unless they exist. The document
// has the name of the task, so that each call for it books the same task.
const order = firestore.collection('orders').doc(id);
const doc = firestore.collection('analyses').doc(id);
const bookedTask = await firestore.runTransaction(async (tx) => {
  const existing = await tx.get(doc);
  if (existing.exists) return existing.get('bookedTask'); // none if it has run
  const now = FieldValue.serverTimestamp();
  const bookedTask = randomUUID();
  tx.create(order, { text });
  tx.create(doc, { status: 'QUEUED', input: { text }, createdAt: now, updatedAt: now, bookedTask });
  return bookedTask;
});

// 2. Create the task that delivers it.
const task = {
  name: `${TASK_QUEUE}/tasks/${bookedTask}`,
  dispatchDeadline: { seconds: 26 * 60 }, // the worker's RUN_TIMEOUT (25m) + 1 min
  httpRequest: {
    httpMethod: 'POST',
    url: `${TASK_TARGET_URL}/internal/tasks/analysis`,
    body: Buffer.from(JSON.stringify({ analysis_id: id })),
    oidcToken: { serviceAccountEmail: TASK_CALLER, audience: TASK_TARGET_URL },
  },
};
for (let tries = 1; bookedTask; tries++) {
  try {
    await tasks.createTask({ parent: TASK_QUEUE, task });
    break;
  } catch (err) {
    if (err.code === grpc.status.ALREADY_EXISTS) break; // by an earlier try
    if (tries === 5) {
      console.error(err); // recovery books it within one TTL and a minute
      break;
    }
    await setTimeout(tries * 1000);
  }
}

// 3. Watch the document until it is READY or FAILED.
const analysis = await new Promise((resolve, reject) => {
  const stop = doc.onSnapshot((snapshot) => {
    const data = snapshot.data();
    console.log(data.status);
    if (data.status === 'READY' || data.status === 'FAILED') {
      stop();
      resolve(data);
    }
  }, reject);
});
console.log(JSON.stringify(analysis.status === 'READY' ? analysis.result : analysis.error));
await Promise.all([firestore.terminate(), tasks.close()]);
process.exitCode = analysis.status === 'READY' ? 0 : 1;
