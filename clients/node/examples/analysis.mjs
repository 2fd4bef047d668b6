// Counts the words of pages, and charges for them once: program.mjs is a program with it, service.mjs a service.
//
// Its input is {"pages": ["good day", "good night"], "ledger": FILE}. A line in FILE is a charge.
import { appendFile, readFile } from 'node:fs/promises';
import { Failed } from 'taskguard';

export async function analyze(job) {
  const { pages, ledger } = job.input;
  if (!pages?.length) throw new Failed('no_pages', 'the input has no pages', { permanent: true });

  let { done, words } = job.resume ?? { done: 0, words: 0 };
  while (done < pages.length) {
    words += pages[done].split(' ').length; // the expensive work on one page
    done += 1;
    job.report(done / pages.length, `page ${done} of ${pages.length}`);
    await job.checkpoint({ done, words });
  }

  const find = (key) => findCharge(ledger, key);
  const bill = await job.once('charge', (key) => charge(ledger, words, key), { find });
  return { words, bill };
}

async function charge(ledger, cents, key) { // the provider, which gets the key
  await appendFile(ledger, `${JSON.stringify({ key, cents })}\n`);
  return { charged: cents };
}

async function findCharge(ledger, key) { // asks the provider; undefined: there was no charge
  const charges = (await readFile(ledger, 'utf8')).split('\n').filter(Boolean).map((line) => JSON.parse(line));
  const found = charges.find((made) => made.key === key);
  return found && { charged: found.cents };
}
