// The programs of analyzer.test.mjs: node programs.mjs NAME
import { once } from 'node:events';
import { run } from 'taskguard';

const programs = {
  async throws() {
    throw new RangeError('page 7 is missing');
  },
  async circular() {
    const result = {};
    result.self = result;
    return result;
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
  async waits(job) { // the two replies come in the other order
    await Promise.all([1, 2].map((n) => job.checkpoint(n, { wait: true }).then(() => job.report(n / 2, `${n}`))));
  },
  async large(job) {
    await job.once('charge', () => 'x'.repeat(2 << 20));
  },
  async full(job) {
    const err = await job.once('charge', () => ({ charged: 1 })).catch((caught) => caught);
    return { name: err.name, value: err.value };
  },
};

await run(programs[process.argv[2]]);
