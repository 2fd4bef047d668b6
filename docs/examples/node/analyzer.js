// An analyzer that continues where an earlier attempt was interrupted:
//
//   ANALYZER="exec:node analyzer.js"
//
// Its input is {"pages": 40}; with "seconds": 0.5 in it, each page takes so long.
import { readFileSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

const analyze = async (page) => { // the expensive work on one page
  await sleep(1000 * (job.input.seconds ?? 0));
  return page;
};

const job = JSON.parse(readFileSync(0, 'utf8'));
let { done, sum } = job.checkpoint ?? { done: 0, sum: 0 };
const { pages } = job.input;
while (done < pages) {
  sum += await analyze(done + 1);
  done += 1;
  const report = { progress: done / pages, message: `page ${done} of ${pages}`, checkpoint: { done, sum } };
  writeSync(Number(process.env.REPORT_FD), JSON.stringify(report) + '\n');
}
console.log(JSON.stringify({ sum }));
