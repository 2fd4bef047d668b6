// Submits what standard input asks for, a line of JSON each, and answers each with a line.
import { createInterface } from 'node:readline';
import { Firestore } from '@google-cloud/firestore';
import { CloudTasksClient } from '@google-cloud/tasks';
import { grpc } from 'google-gax';
import { submit } from './index.mjs';

const [host, port] = process.env.CLOUD_TASKS_EMULATOR_HOST.split(':');
const firestore = new Firestore();
const tasks = new CloudTasksClient({ apiEndpoint: host, port: Number(port), sslCreds: grpc.credentials.createInsecure() });
const refusing = { createTask: () => Promise.reject(Object.assign(new Error('refused'), { code: 7 })) };

// A queue that fails, and whose next reply is lost.
let fails = 0;
const lossy = {
  async createTask(request) {
    fails += 1;
    if (fails === 1) throw Object.assign(new Error('unavailable'), { code: 14 });
    await tasks.createTask(request);
    if (fails === 2) throw new Error('the reply is lost');
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, input, queue, options } = JSON.parse(line);
  try {
    const submission = await submit(id, input, { firestore, tasks: { refusing, lossy }[queue] ?? tasks, ...options });
    console.log(JSON.stringify(submission));
  } catch (err) {
    console.log(JSON.stringify({ error: err.name }));
  }
}
