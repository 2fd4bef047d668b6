// The analyzer of the protocol vectors: it does the steps of a case. testdata/protocol/README.md describes them.
//
// As a program it does those of the file exec.json with the name in CASE.
import { readFileSync } from 'node:fs';
import { Failed, NotDone, run } from '../index.mjs';

export const cases = (file) => JSON.parse(readFileSync(new URL(`../../../testdata/protocol/${file}`, import.meta.url)));

const failure = ({ code, message, permanent, retry_after: retryAfter }) =>
  new Failed(code, message, { permanent, retryAfter });

// doing returns the function that does a DO.
function doing(what) {
  return async (key) => {
    if (!what) throw new Error('this must not be called');
    if (!/^[0-9a-f]{32}$/.test(key)) throw new Error(`${key} is no key`);
    if (what.not_done) throw new NotDone(failure(what.not_done));
    if (what.fail) throw failure(what.fail);
    return what.return;
  };
}

export const analyze = (steps) => async (job) => {
  console.log('what an analyzer prints is no result');
  let once;
  for (const step of steps) {
    if (step.report) job.report(...step.report);
    if ('checkpoint' in step) await job.checkpoint(step.checkpoint, { wait: step.wait });
    if (step.once) {
      const find = step.find && (step.find.not_done ? async () => undefined : doing(step.find));
      once = await job.once(step.once, doing(step.do), { find });
    }
    if (step.fail) throw failure(step.fail);
    if ('return' in step) return step.return;
    if (step.return_once) return once;
    if (step.return_checkpoint) return job.resume;
  }
};

if (process.env.CASE) {
  await run(analyze(cases('exec.json').find(({ name }) => name === process.env.CASE).steps));
}
