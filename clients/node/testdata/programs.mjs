// The analyzers of analyzer.test.mjs. As a program: node programs.mjs NAME, of one below or of a protocol vector.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Failed, NotDone, run } from 'taskguard';

const folder = new URL('../../../testdata/protocol/', import.meta.url);
export const vectors = (file) => JSON.parse(readFileSync(new URL(file, folder)));

const failed = ({ code, message, permanent, retry_after: retryAfter }) =>
  new Failed(code, message, { permanent, retryAfter });

// doing returns the function that does a DO of a vector.
const doing = (what) => async (key) => {
  if (!what) throw new Error('this must not be called');
  if (!/^[0-9a-f]{32}$/.test(key)) throw new Error(`${key} is no key`);
  if (what.not_done) throw new NotDone(failed(what.not_done));
  if (what.fail) throw failed(what.fail);
  return what.return;
};

// stepping returns the analyzer that does the steps of a vector; testdata/protocol/README.md describes them.
export const stepping = (steps) => async (job) => {
  console.log('what an analyzer prints is no result');
  let result;
  for (const step of steps) {
    if (step.report) job.report(...step.report);
    if ('checkpoint' in step) await job.checkpoint(step.checkpoint, { wait: step.wait });
    if (step.once) {
      const find = step.find && (step.find.not_done ? async () => undefined : doing(step.find));
      result = await job.once(step.once, doing(step.do), { find });
    }
    if (step.fail) throw failed(step.fail);
    if ('return' in step) return step.return;
    if (step.return_once) return result;
    if (step.return_checkpoint) return job.resume;
  }
};

const programs = {
  async throws() {
    throw new RangeError('page 7 is missing');
  },
  async stops(job) {
    const stopped = once(job.signal, 'abort');
    setTimeout(() => {}, 60_000); // it works
    job.report(0, 'begun');
    await stopped;
    await job.checkpoint({ last: true });
    throw job.signal.reason;
  },
  async ignores(job) {
    job.report(0, 'begun');
    await new Promise((resolve) => { setTimeout(resolve, 60_000); });
  },
  async waits(job) { // for two replies, which come in the other order
    await Promise.all([1, 2].map((n) => job.checkpoint(n, { wait: true }).then(() => job.report(n / 2, `${n}`))));
  },
  async charges(job) {
    const err = await job.once('charge', () => ({ charged: 1 })).catch((caught) => caught);
    return { name: err.name, value: err.value };
  },
};

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [name] = process.argv.slice(2);
  await run(programs[name] ?? stepping(vectors('exec.json').find((vector) => vector.name === name).steps));
}
