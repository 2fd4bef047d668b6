// An analyzer that continues where an earlier attempt was interrupted:
//
//   ANALYZER="exec:node analyzer.js"
//
// Its input is {"pages": 40}.
import { readFileSync, writeSync } from 'node:fs';

const analyze = async (page) => page; // the expensive work on one page

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
