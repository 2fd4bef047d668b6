// The example with the workers of `taskguard local`, whose ANALYZER is killed.mjs, as a service if PORT is set.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Firestore } from '@google-cloud/firestore';

const { PORT } = process.env;

// A kill -9 costs the page that was not committed, and no second charge.
test('an analysis continues after kills, and charges once', { timeout: 120_000 }, async () => {
  let service;
  const serve = () => { // again after each kill
    service = spawn(process.execPath, ['testdata/killed.mjs', PORT], { stdio: 'inherit' }).on('exit', serve);
  };
  if (PORT) serve();
  const dir = mkdtempSync(join(tmpdir(), 'killed-'));
  const [journal, ledger] = ['journal', 'ledger'].map((name) => join(dir, name));
  [journal, ledger].forEach((file) => writeFileSync(file, ''));
  const input = { pages: ['one', 'two words', 'good', 'and three words'], journal, ledger };
  const submission = execFileSync(process.execPath, ['examples/submit.mjs', 'killed', JSON.stringify(input)]);
  assert.deepEqual(JSON.parse(submission), { created: true, enqueued: true, status: 'QUEUED' });

  const firestore = new Firestore();
  let done;
  try {
    for (; !['READY', 'FAILED'].includes(done?.status); await sleep(100)) {
      done = (await firestore.doc('analyses/killed').get()).data();
      assert.ok(performance.now() < 100_000, JSON.stringify(done));
    }
  } finally {
    service?.removeAllListeners().kill('SIGKILL');
    await firestore.terminate();
  }
  assert.deepEqual(done.result, { words: 7, bill: { charged: 7 } }, JSON.stringify(done));
  assert.deepEqual(readFileSync(journal, 'utf8').split('\n'), [
    'page 1 of 4', 'page 2 of 4', 'page 3 of 4', 'killed at page 3',
    'page 3 of 4', 'page 4 of 4', 'killed at charge', '',
  ]);
  assert.equal(readFileSync(ledger, 'utf8').split('\n').length, 2);
});
