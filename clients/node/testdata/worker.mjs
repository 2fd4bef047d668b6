// A worker in Node: a delivery is a POST of {"analysis_id": "…"}. JOURNAL gets a line at the begin and
// at the end of each run, before it is finished.
import { randomUUID } from 'node:crypto';
import { appendFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { Firestore } from '@google-cloud/firestore';
import { analysisLocks } from '../lock.mjs';

const firestore = new Firestore();
const { acquireAnalysisLock, finishAnalysis, refreshAnalysisLock, releaseAnalysisLock } = analysisLocks(firestore);
const ttlSec = Number(process.env.TTL);
const instance = `node-${process.pid}`;

// deliver returns the status of the answer: 2xx acknowledges the delivery.
async function deliver(id) {
  const owner = `${instance}/${randomUUID()}`; // new for each delivery
  const asked = performance.now();
  const lock = await acquireAnalysisLock(id, owner, ttlSec);
  if (!lock.acquired) return lock.reason === 'locked' ? 409 : 200;

  const lost = new AbortController();
  const trust = ttlSec * 900; // nine tenths of the TTL, by this process's own clock
  let trusted = asked + trust;
  const heartbeat = setInterval(() => {
    const asked = performance.now();
    refreshAnalysisLock(id, owner, ttlSec).then(() => { trusted = asked + trust; }, (err) => {
      if (err.code === 'lost' || err.code === 'not_found') lost.abort(err);
    });
  }, (ttlSec * 1000) / 3);
  const watchdog = setInterval(() => { // also while a refresh hangs
    if (performance.now() > trusted) lost.abort(new Error('no refresh in time: another worker may run it'));
  }, 100);
  try {
    const result = await analyze(id, lock, lost.signal);
    await finishAnalysis(id, owner, { result });
    return 200;
  } finally {
    clearInterval(heartbeat);
    clearInterval(watchdog);
    await releaseAnalysisLock(id, owner); // if the run has failed
  }
}

async function analyze(id, { token, attempt }, signal) {
  const line = (event) => appendFileSync(process.env.JOURNAL, `${event} ${id} ${token} ${process.pid}\n`);
  line('begin');
  try {
    await sleep(duration(id, attempt), undefined, { signal });
  } finally {
    line('end'); // also of a run that is aborted, as its lock is no longer trusted
  }
  return { token };
}

function duration(id, attempt) {
  if (id.startsWith('killed-') && attempt === 1) return 60_000;
  return id.startsWith('long-') ? 8_000 : 200;
}

const server = createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  const id = JSON.parse(body).analysis_id;
  const status = await deliver(id).catch((err) => {
    console.error(id, err.message);
    return 500;
  });
  response.writeHead(status).end();
});
server.listen(0, '127.0.0.1', () => {
  console.log(JSON.stringify({ message: 'serving', address: `127.0.0.1:${server.address().port}` }));
});
