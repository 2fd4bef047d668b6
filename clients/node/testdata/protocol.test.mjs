// run and endpoint send what the protocol vectors say, which the worker's own code understands.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { endpoint } from '../index.mjs';
import { analyze, cases } from './steps.mjs';

const program = fileURLToPath(new URL('steps.mjs', import.meta.url));
const parsed = (lines) => lines.split('\n').filter(Boolean).map((line) => JSON.parse(line));

for (const { name, job, lines, output, exit } of cases('exec.json')) {
  test(`exec: ${name}`, { timeout: 60_000 }, async () => {
    const env = { PATH: process.env.PATH, CASE: name, REPORT_FD: '3', REPLY_FD: '4' };
    const child = spawn(process.execPath, [program], { env, stdio: Array(5).fill('pipe') });
    const [stdin, stdout, stderr, reports, replies] = child.stdio;
    const ended = Promise.all([once(child, 'exit'), text(stdout), text(stderr)]);
    stdin.end(`${JSON.stringify(job)}\n`);

    const passed = [];
    for await (const line of createInterface({ input: reports })) {
      passed.push({ send: JSON.parse(line) });
      for (; lines[passed.length]?.reply; passed.push(lines[passed.length])) {
        replies.write(`${JSON.stringify(lines[passed.length].reply)}\n`);
      }
    }
    const [[status], printed, errors] = await ended;
    assert.deepEqual(passed, lines, errors);
    assert.deepEqual(parsed(printed), output === undefined ? [] : [output], errors);
    assert.equal(status, exit, errors);
  });
}

// serving calls use with the URL of a server.
async function serving(handler, use) {
  const server = createServer(handler);
  await once(server.listen(0, '127.0.0.1'), 'listening');
  try {
    return await use(`http://127.0.0.1:${server.address().port}`);
  } finally {
    server.close();
  }
}

for (const { name, job, steps, answer } of cases('http.json')) {
  test(`http: ${name}`, { timeout: 60_000 }, () => serving(endpoint(analyze(steps)), async (url) => {
    const response = await fetch(url, { method: 'POST', body: JSON.stringify(job) });
    const body = await response.text();
    const got = { status: response.status, type: response.headers.get('content-type') };
    if (response.headers.has('retry-after')) got.retry_after = response.headers.get('retry-after');
    if (got.type === 'application/x-ndjson') got.lines = parsed(body);
    else got.body = JSON.parse(body);
    assert.deepEqual(got, answer);
  }));
}
