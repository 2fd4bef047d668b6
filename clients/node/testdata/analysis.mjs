// An analysis of pages that ends with a charge: program.mjs is a program with it, service.mjs a service.
//
// Its input is {"pages": 40, "ledger": FILE}; with "seconds": 0.5 in it, each page takes so long. A line in FILE
// is a page that was read, or a charge.
import { appendFileSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

export async function analyze(job) {
  const { pages, ledger, seconds = 0 } = job.input;
  let { done, sum } = job.resume ?? { done: 0, sum: 0 };
  while (done < pages) {
    sum += await readPage(done + 1);
    done += 1;
    job.report(done / pages, `page ${done} of ${pages}`);
    await job.checkpoint({ done, sum });
  }
  const { charged } = await job.once('charge', charge, { find });
  return { sum, charged };

  async function readPage(page) { // the expensive work on one page
    await sleep(1000 * seconds);
    appendFileSync(ledger, `page ${page}\n`);
    return page;
  }

  async function charge(key) { // the provider, which is slow at first
    const first = !readFileSync(ledger, 'utf8').includes('charge');
    appendFileSync(ledger, `charge ${key} ${sum}\n`);
    if (first) await sleep(1000 * (job.input.hangs ?? 0));
    return { charged: sum };
  }

  async function find(key) { // asks the provider
    const found = readFileSync(ledger, 'utf8').match(`charge ${key} (.*)`);
    return found ? { charged: Number(found[1]) } : undefined;
  }
}
