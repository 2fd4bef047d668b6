// What analyzers do besides the protocol vectors.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { endpoint } from 'taskguard';

const programs = fileURLToPath(new URL('programs.mjs', import.meta.url));
const job = { analysis_id: 'an-id', lock_token: 7, attempt: 1, input: null };

// ran runs a program, calls reply with each line, and returns how it ended. Without a reply it has no worker.
async function ran(name, reply) {
  const env = { PATH: process.env.PATH, ...(reply && { REPORT_FD: '3', REPLY_FD: '4' }) };
  const child = spawn(process.execPath, [programs, name], { env, stdio: Array(5).fill('pipe') });
  const [stdin, stdout, stderr, reports, replies] = child.stdio;
  const ended = Promise.all([once(child, 'exit'), text(stdout), text(stderr)]);
  stdin.end(JSON.stringify(job));
  const lines = [];
  for await (const line of createInterface({ input: reports })) {
    lines.push(JSON.parse(line));
    for (const answer of reply(lines, child) ?? []) replies.write(`${JSON.stringify(answer)}\n`);
  }
  const [[exit, signal], output, errors] = await ended;
  return { exit, signal, output, errors, lines };
}

const none = () => [];
const limited = { timeout: 60_000 };

test('the code of another error is its class, and its stack is on standard error', limited, async () => {
  const { exit, output, errors, lines } = await ran('throws', none);
  assert.deepEqual({ exit, output, lines }, { exit: 1, output: '', lines: [{ error: { code: 'RangeError' } }] });
  assert.match(errors, /RangeError: page 7 is missing\n +at .*programs\.mjs/);
});

test('a result that is no JSON is a permanent failure', limited, async () => {
  const { exit, lines } = await ran('circular', none);
  assert.deepEqual([exit, lines[0].error.code, lines[0].error.permanent], [65, 'result_invalid', true]);
});

test('after SIGTERM a program that looks at the signal can report a last checkpoint, and another one ends', limited, async () => {
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

test('a line that the worker cannot read is not committed', limited, async () => {
  const replies = [{ ack: 1, effect: { state: 'go', key: 'k' } }, { error: 'a report is too long' }];
  const { exit, lines } = await ran('large', () => replies.splice(0, 1));
  assert.deepEqual([exit, lines[1].ack, lines[2].error], [1, 2, { code: 'not_committed', message: 'a report is too long' }]);
});

test('a side effect whose result is not stored has happened', limited, async () => {
  const { exit, output } = await ran('full', ({ length }) => (
    [{ ack: length, effect: length === 1 ? { state: 'go', key: 'k' } : { state: 'done', result_error: 'no room' } }]
  ));
  assert.deepEqual([exit, JSON.parse(output)], [0, { name: 'NotStored', value: { charged: 1 } }]);
});

test('without a worker no side effect begins', limited, async () => {
  const { exit, errors } = await ran('full');
  assert.equal(exit, 0);
  assert.doesNotMatch(errors, /charged/);
  const { output } = await ran('full');
  assert.equal(JSON.parse(output).name, 'NotCommitted');
});

// posted returns the status and the lines of a service's answer to a body, after wrapped, if given, had the request.
async function posted(analyze, body = JSON.stringify(job), wrapped = () => {}) {
  const handler = endpoint(analyze);
  const server = createServer((request, response) => handler(Object.assign(request, wrapped(request)), response));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  try {
    const response = await fetch(`http://127.0.0.1:${server.address().port}`, { method: 'POST', body });
    const lines = (await response.text()).split('\n').filter(Boolean).map((line) => JSON.parse(line));
    return [response.status, ...lines];
  } finally {
    server.close();
  }
}

test('a service answers another error 500, with its class', limited, async (t) => {
  const logged = t.mock.method(console, 'error', () => {});
  const analyze = async () => { throw new RangeError('page 7 is missing'); };
  assert.deepEqual(await posted(analyze), [500, { error: { code: 'RangeError', message: 'page 7 is missing' } }]);
  assert.match(logged.mock.calls[0].arguments[0].stack, /analyzer\.test/);
  const [status, { error }] = await posted(analyze, 'no JSON');
  assert.deepEqual([status, error.code], [500, 'SyntaxError']);
});

test('express.json() may have parsed the body', limited, async () => {
  assert.deepEqual(await posted(async ({ analysisId }) => analysisId, '', () => ({ body: job })), [200, 'an-id']);
});

test('a service does a side effect once a name, and none in a self-test', limited, async () => {
  const charged = (fields) => JSON.stringify({ ...job, ...fields });
  const twice = async (given) => [await given.once('charge', () => 1), await given.once('charge', () => 2)];
  const done = { taskguard_effects: { charge: { done: 1 } }, checkpoint: null };
  const reused = await posted(twice, charged({ checkpoint: done }));
  assert.deepEqual([reused[0], reused[1].error.code], [422, 'act_name_reused']);
  const tested = await posted(twice, charged({ self_test: true }));
  assert.deepEqual([tested[0], tested[1].error.code], [422, 'act_in_self_test']);
});

test('a service that catches the end of its attempt has no result', limited, async () => {
  const analyze = async (given) => { await given.once('charge', () => 1).catch(() => {}); };
  const [status, , { error }] = await posted(analyze);
  assert.deepEqual([status, error.code], [200, 'before_effect']);
});

test('a service learns that the worker has hung up', limited, async (t) => {
  t.mock.method(console, 'error', () => {});
  let end;
  const ended = new Promise((resolve) => { end = resolve; });
  const server = createServer(endpoint(async (given) => {
    given.report(0.5, 'half');
    await once(given.signal, 'abort');
    end(await given.checkpoint(1).catch((err) => err.message));
  }));
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const worker = new AbortController();
  const url = `http://127.0.0.1:${server.address().port}`;
  await fetch(url, { method: 'POST', body: JSON.stringify(job), signal: worker.signal });
  worker.abort();
  assert.equal(await ended, 'the worker has closed the connection');
  server.close();
});
