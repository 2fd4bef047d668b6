// run and endpoint send what the protocol vectors say, which orchestrator/protocol_test.go feeds to the workers'
// own code, and do what the vectors do not have.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { endpoint, NotDone } from 'taskguard';
import { stepping, vectors } from './programs.mjs';

const programs = fileURLToPath(new URL('programs.mjs', import.meta.url));
const aJob = { analysis_id: 'an-id', lock_token: 7, attempt: 1, input: null };
const limited = { timeout: 60_000 };
const parsed = (lines) => lines.split('\n').filter(Boolean).map((line) => JSON.parse(line));

// ran runs a program, writes what reply returns for its lines so far, and returns how it ended.
async function ran(name, reply, job = aJob) {
  const env = { PATH: process.env.PATH, ...(reply && { REPORT_FD: '3', REPLY_FD: '4' }) };
  const ends = { timeout: 40_000, killSignal: 'SIGKILL' }; // a program that hangs fails its test
  const child = spawn(process.execPath, [programs, name], { env, stdio: Array(5).fill('pipe'), ...ends });
  const [stdin, stdout, stderr, reports, replies] = child.stdio;
  const ended = Promise.all([once(child, 'exit'), text(stdout), text(stderr)]);
  stdin.end(JSON.stringify(job));
  const lines = [];
  for await (const line of createInterface({ input: reports })) {
    lines.push(JSON.parse(line));
    for (const answer of reply(lines, child) ?? []) replies.write(`${JSON.stringify(answer)}\n`);
  }
  const [[exit, signal], output, errors] = await ended;
  return { exit, signal, output: parsed(output), errors, lines };
}

for (const { name, job, lines, output, exit } of vectors('exec.json')) {
  test(`exec: ${name}`, limited, async () => {
    const passed = [];
    const got = await ran(name, (sent) => {
      passed.push({ send: sent.at(-1) });
      while (lines[passed.length]?.reply) passed.push(lines[passed.length]);
      return passed.slice(passed.findLastIndex((line) => line.send) + 1).map((line) => line.reply);
    }, job);
    assert.deepEqual(passed, lines, got.errors);
    assert.deepEqual([got.exit, got.output], [exit, output === undefined ? [] : [output]], got.errors);
  });
}

test('the code of another error is its class, and its stack is on standard error', limited, async () => {
  const { exit, output, errors, lines } = await ran('throws', () => []);
  assert.deepEqual({ exit, output, lines }, { exit: 1, output: [], lines: [{ error: { code: 'RangeError' } }] });
  assert.match(errors, /RangeError: page 7 is missing\n +at .*programs\.mjs/);
});

test('after SIGTERM a program that looks at the signal can report a last checkpoint, and another ends', limited, async () => {
  const stop = (lines, child) => { if (lines.length === 1) child.kill('SIGTERM'); };
  const stopped = await ran('stops', stop);
  assert.deepEqual([stopped.exit, stopped.lines[1]], [1, { checkpoint: { last: true } }]);
  const ended = await ran('ignores', stop);
  assert.deepEqual([ended.exit, ended.signal, ended.lines.length], [null, 'SIGTERM', 1]);
});

test('replies are found by their ack', limited, async () => {
  const { exit, lines } = await ran('waits', (all) => (all.length === 2 ? [{ ack: 2 }, { ack: 1 }] : []));
  assert.deepEqual([exit, ...lines.slice(2).map((line) => line.message)], [0, '2', '1']);
});

test('a side effect without a worker, without a readable line, or without room for its result', limited, async () => {
  const go = { state: 'go', key: 'k' };
  const full = { state: 'done', result_error: 'no room' };
  const name = async (reply) => (await ran('charges', reply)).output[0];
  assert.deepEqual(await name(undefined), { name: 'NotCommitted' });
  assert.deepEqual(await name(() => [{ error: 'a report is too long' }]), { name: 'NotCommitted' });
  const stored = await name(({ length }) => [{ ack: length, effect: length === 1 ? go : full }]);
  assert.deepEqual(stored, { name: 'NotStored', value: { charged: 1 } });
});

// posted posts a body to a service, and returns the answer as vectors have it.
async function posted(analyze, { body = JSON.stringify(aJob), signal, had } = {}) {
  const handler = endpoint(analyze);
  const server = createServer((request, response) => handler(Object.assign(request, had), response));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  try {
    const response = await fetch(`http://127.0.0.1:${server.address().port}`, { method: 'POST', body, signal });
    const got = { status: response.status, type: response.headers.get('content-type') };
    if (response.headers.has('retry-after')) got.retry_after = response.headers.get('retry-after');
    const lines = parsed(await response.text());
    return { ...got, ...(got.type === 'application/x-ndjson' ? { lines } : { body: lines[0] }) };
  } finally {
    server.close();
  }
}

// resolvable returns a promise and its resolve, as Promise.withResolvers of later versions.
function resolvable() {
  const made = {};
  made.promise = new Promise((resolve) => { made.resolve = resolve; });
  return made;
}

test('a service refuses an attempt while an earlier one that never reports still runs', limited, async (t) => {
  const begun = resolvable();
  const proceed = resolvable();
  const tokens = [];
  const handler = endpoint(async ({ lockToken }) => {
    tokens.push(lockToken);
    begun.resolve();
    await proceed.promise;
    return lockToken;
  });
  const server = createServer(handler);
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => { proceed.resolve(); server.close(); });
  const post = async (token, signal) => {
    const body = JSON.stringify({ ...aJob, lock_token: token });
    const response = await fetch(`http://127.0.0.1:${server.address().port}`, { method: 'POST', body, signal });
    return [response.status, response.headers.get('retry-after'), await response.json()];
  };

  const hangUp = new AbortController();
  const first = post(1, hangUp.signal);
  await begun.promise;
  hangUp.abort();
  await assert.rejects(first);
  const [status, wait, { error }] = await post(2);
  assert.deepEqual([status, wait, error.code, tokens], [503, '30', 'still_running', [1]]);

  proceed.resolve();
  await new Promise((resolve) => { setImmediate(resolve); }); // the first attempt ends
  assert.deepEqual(await post(3), [200, null, 3]);
});

for (const { name, job, steps, answer, calls = [{ answer }] } of vectors('http.json')) {
  test(`http: ${name}`, limited, async () => {
    for (const call of calls) {
      const { answer: want, steps: own = steps, ...fields } = call;
      assert.deepEqual(await posted(stepping(own), { body: JSON.stringify({ ...job, ...fields }) }), want);
    }
  });
}

test('a service answers another error 500, and logs its stack', limited, async (t) => {
  const logged = t.mock.method(console, 'error', () => {});
  const { status, body } = await posted(async () => { throw new RangeError('page 7 is missing'); });
  assert.deepEqual([status, body], [500, { error: { code: 'RangeError', message: 'page 7 is missing' } }]);
  assert.match(logged.mock.calls[0].arguments[0].stack, /analyzer\.test/);
  assert.equal((await posted(async () => {}, { body: 'no JSON' })).status, 500);
});

test('a result that is no JSON is a permanent failure', limited, async () => {
  const circular = {};
  circular.self = circular;
  const { status, body } = await posted(async () => circular);
  assert.deepEqual([status, body.error.code, body.error.permanent], [422, 'result_invalid', true]);
});

test('express.json() may have parsed the body', limited, async () => {
  assert.equal((await posted(async (job) => job.analysisId, { body: '', had: { body: aJob } })).body, 'an-id');
});

test('a service does no side effect twice, or in a self-test, or after an earlier version', limited, async () => {
  const effects = { charge: { state: 'go', key: 'k' } };
  const code = async (analyze, fields) => {
    const { body, lines } = await posted(analyze, { body: JSON.stringify({ ...aJob, ...fields }) });
    return (body ?? lines.at(-1)).error.code;
  };
  const twice = async (job) => [await job.once('charge', () => 1), await job.once('charge', () => 2)];
  assert.equal(await code(twice, { effects }), 'act_name_reused');
  assert.equal(await code(twice, { self_test: true }), 'act_in_self_test');
  const checkpoint = { taskguard_effects: { charge: { token: 6 } }, checkpoint: null };
  assert.equal(await code(twice, { effects, checkpoint }), 'effects_in_checkpoint');
});

test('a service that catches the end of its call asks for its first side effect', limited, async () => {
  const catching = async (job) => {
    for (const name of ['a', 'b']) await job.once(name, assert.fail).catch(() => 'caught');
  };
  assert.deepEqual((await posted(catching)).lines, [{ effect: 'a' }]);
});

test('a side effect under way ends before a service asks for another', limited, async () => {
  const slow = () => new Promise((resolve) => { setTimeout(resolve, 100, 1); });
  const both = (job) => Promise.all([job.once('a', slow), job.once('b', slow)]);
  const { lines } = await posted(both, { body: JSON.stringify({ ...aJob, effects: { a: { state: 'go', key: 'k' } } }) });
  assert.deepEqual(lines, [{ effect: 'a', done: 1 }, { effect: 'b' }]);
});

test('a side effect that was not done can be asked for again', limited, async () => {
  const refused = (job) => job.once('a', () => { throw new NotDone(new Error('declined')); });
  const again = (job) => refused(job).catch(() => refused(job));
  const { lines } = await posted(again, { body: JSON.stringify({ ...aJob, effects: { a: { state: 'go', key: 'k' } } }) });
  assert.deepEqual(lines, [{ effect: 'a', not_done: true }, { effect: 'a' }]);
});

test('a service learns that the worker has hung up', limited, async () => {
  const worker = new AbortController();
  let report;
  const seen = new Promise((resolve) => { report = resolve; });
  await assert.rejects(posted(async (job) => {
    job.report(0.5, 'half');
    worker.abort();
    await once(job.signal, 'abort');
    report(await job.checkpoint(1).catch((err) => err.message));
  }, { signal: worker.signal }));
  assert.equal(await seen, 'the worker has closed the connection');
});
