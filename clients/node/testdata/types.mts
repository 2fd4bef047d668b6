// Code of an application in TypeScript compiles with the module's types.
import { createServer } from 'node:http';
import { CloudTasksClient } from '@google-cloud/tasks';
import { Firestore } from '@google-cloud/firestore';
import { Failed, NotDone, endpoint, run, submit, type Job } from '../index.mjs';

async function analyze(job: Job<{ pages: string[] }, { done: number }>) {
  const { done } = job.resume ?? { done: 0 };
  job.report(done / job.input.pages.length);
  await job.checkpoint({ done }, { wait: true });
  const find = async (key: string) => (key ? { charged: 1 } : undefined);
  const refused = new NotDone(new Failed('declined', 'the card is declined', { permanent: true }));
  const { charged } = await job.once('charge', (key) => { if (!key) throw refused; return { charged: 1 }; }, { find });
  // @ts-expect-error: a checkpoint is of the type of the state
  await job.checkpoint({ page: 1 });
  return { charged };
}

createServer(endpoint(analyze));
const { created } = await submit('an-id', { pages: [] }, { firestore: new Firestore(), tasks: new CloudTasksClient() });
if (created) await run(analyze);
