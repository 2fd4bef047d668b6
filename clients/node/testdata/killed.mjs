// The example, which kills its worker, or as a service itself: once after a page, and once after the charge. It
// writes what it does into the file input.journal.
import { appendFileSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { endpoint, run } from 'taskguard';
import { analyze } from '../examples/analysis.mjs';

const [service] = process.argv.slice(2);

function killing(job) {
  const { journal } = job.input;
  const write = (line) => appendFileSync(journal, `${line}\n`);
  const killOnce = (when) => {
    if (readFileSync(journal, 'utf8').includes(`killed at ${when}`)) return;
    write(`killed at ${when}`);
    process.kill(service ? process.pid : process.ppid, 'SIGKILL');
    for (;;); // until the kill is done
  };
  return {
    input: job.input,
    resume: job.resume,
    report(progress, message) {
      write(message);
      job.report(progress, message);
      if (message === 'page 3 of 4') killOnce('page 3');
    },
    checkpoint: (state) => job.checkpoint(state, { wait: true }),
    once: (name, act, options) => job.once(name, async (key) => {
      const result = await act(key);
      killOnce(name);
      return result;
    }, options),
  };
}

const killed = (job) => analyze(killing(job));
if (service) createServer(endpoint(killed)).listen(service, 'localhost');
else await run(killed);
