// What an analyzer in Node needs: run for a program (ANALYZER=exec:node analyzer.mjs), and endpoint for a
// service (ANALYZER=http://…). Both call your function with a Job, and what it returns is the result.
//
//   await run(async (job) => ({ pages: job.input.pages }));
import { createHash } from 'node:crypto';
import { writeSync } from 'node:fs';
import { Socket } from 'node:net';
import { createInterface } from 'node:readline';

const exitRejected = 65; // the exit status of a permanent failure

/** Failed ends a run as failed. It is retried, unless permanent is true. */
export class Failed extends Error {
  constructor(code, message, { permanent = false, retryAfter, cause } = {}) {
    super(message, { cause });
    this.name = this.constructor.name;
    Object.assign(this, { code, permanent, retryAfter });
  }
}

/** NotCommitted: the worker has not committed a line. With unknown, it may have. */
export class NotCommitted extends Failed {
  constructor(message, unknown = false) {
    super('not_committed', message);
    this.unknown = unknown;
  }
}

/** NotStored: a side effect happened and is recorded, but not its result, the value. */
export class NotStored extends Failed {
  constructor(name, reason, value) {
    super('effect_result_not_stored', `the result of ${name} was not stored: ${reason}`);
    this.value = value;
  }
}

/** NotDone tells once that its side effect did not happen. once then throws the cause. */
export class NotDone extends Error {
  constructor(cause) {
    super('the side effect was not done', { cause });
  }
}

/** Job is one attempt at one analysis. */
class Job {
  #worker;

  constructor(fields, worker) {
    this.analysisId = fields.analysis_id;
    this.lockToken = fields.lock_token;
    this.attempt = fields.attempt;
    this.input = fields.input;
    this.resume = worker.resume ?? null;
    this.selfTest = fields.self_test ?? false;
    this.#worker = worker;
  }

  get signal() {
    return this.#worker.signal;
  }

  report(progress, message) {
    this.#worker.send({ progress, message });
  }

  async checkpoint(value, { wait = false } = {}) {
    await this.#worker.checkpoint(value ?? null, wait);
  }

  async once(name, act, { find } = {}) {
    let effect = await this.#worker.begin(name);
    if (effect.state === 'uncertain') {
      if (!find) throw effect.failure;
      const found = await find(effect.key);
      if (found !== undefined) return this.#worker.end(name, found);
      effect = await this.#worker.beginAgain(name);
    }
    if (effect.state === 'done') return effect.result;

    let result;
    try {
      result = await act(effect.key);
    } catch (err) {
      if (!(err instanceof NotDone)) throw err; // it may have happened
      await this.#worker.undo(name);
      throw err.cause ?? err;
    }
    return this.#worker.end(name, result);
  }
}

/** run is a program: it reads the job, calls analyze, prints the result, and exits. */
export async function run(analyze) {
  const print = process.stdout.write.bind(process.stdout);
  process.stdout.write = process.stderr.write.bind(process.stderr); // what console.log writes is no result

  let text = '';
  for await (const chunk of process.stdin.setEncoding('utf8')) text += chunk;
  const fields = JSON.parse(text);
  const worker = new Pipes(process.env, fields.checkpoint);
  let status = 0;
  try {
    const result = plain(await analyze(new Job(fields, worker)));
    await new Promise((printed) => { print(`${JSON.stringify(result)}\n`, printed); });
  } catch (err) {
    const line = failure(err);
    if (!(err instanceof Failed)) {
      delete line.error.message; // instead, the worker takes the end of this, with the stack
      await new Promise((printed) => { process.stderr.write(`${err?.stack ?? err}\n`, printed); });
    }
    worker.send(line);
    status = line.error.permanent ? exitRejected : 1;
  }
  process.exit(status);
}

const busySeconds = 30; // the worker asks 100 times without counting an attempt: for 50 minutes

/**
 * endpoint returns a handler for Express and node:http that answers the worker's POST.
 *
 * A run that neither reports nor reads its signal goes on after a hang-up. Until it ends, the handler answers 503
 * with Retry-After to the next attempt at the same analysis.
 */
export function endpoint(analyze) {
  const running = new Set(); // ids of analyses; a self-test has none
  return async (request, response) => {
    let worker;
    let entered;
    try {
      const fields = await parse(request);
      worker = new Answer(fields, response);
      if (running.has(fields.analysis_id)) {
        throw new Failed('still_running', 'an earlier attempt still runs in this process', { retryAfter: busySeconds });
      }
      entered = fields.analysis_id;
      if (entered) running.add(entered);
      const result = plain(await analyze(new Job(fields, worker)));
      if (worker.ended) throw worker.ended;
      worker.finish({ result });
    } catch (err) {
      if (!(err instanceof Failed || worker?.signal.aborted)) console.error(err);
      (worker ?? new Answer({}, response)).finish(failure(err));
    } finally {
      running.delete(entered);
    }
  };
}

// parse returns the job of a request, whose body express.json() may have read.
async function parse(request) {
  if (request.body !== null && typeof request.body === 'object') return request.body;
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks));
}

// plain returns a result as decoded from its JSON, as a later attempt gets it.
function plain(result = null) {
  try {
    return JSON.parse(JSON.stringify(result) ?? 'null');
  } catch (cause) {
    throw new Failed('result_invalid', `the result is not JSON: ${cause.message}`, { permanent: true, cause });
  }
}

// failure returns the line that reports an error. The code of one that is not Failed is its class.
function failure(err) {
  const message = err?.message ?? String(err);
  if (!(err instanceof Failed)) return { error: { code: err?.name, message } };
  const { code, permanent, retryAfter } = err;
  return { error: { code, message, permanent: permanent || undefined }, retry_after: retryAfter };
}

// Pipes reach the worker of a program: lines on REPORT_FD, replies on REPLY_FD. A program that you start
// yourself has neither: then reports go to standard error, and no side effect begins.
class Pipes {
  #reports;
  #replies;
  #stop;
  #acks = 0;
  #waiting = new Map(); // ack -> the function that takes its reply

  constructor({ REPORT_FD = '2', REPLY_FD }, resume) {
    this.#reports = Number(REPORT_FD);
    this.#replies = REPLY_FD && Number(REPLY_FD);
    this.resume = resume;
  }

  // An analyzer that does not look at the signal is ended by SIGTERM at once.
  get signal() {
    if (!this.#stop) {
      this.#stop = new AbortController();
      process.on('SIGTERM', () => this.#stop.abort(new Error('the worker ends this run')));
    }
    return this.#stop.signal;
  }

  send(line) {
    for (let rest = Buffer.from(`${JSON.stringify(line)}\n`); rest.length > 0;) {
      rest = rest.subarray(writeSync(this.#reports, rest));
    }
  }

  async checkpoint(checkpoint, wait) {
    if (wait && this.#replies) await this.#ask({ checkpoint });
    else this.send({ checkpoint });
  }

  async begin(effect) {
    if (!this.#replies) throw new NotCommitted('REPLY_FD is not set: no worker has started this program');
    const { effect: { result_error: reason, ...state } } = await this.#ask({ effect });
    if (reason !== undefined) {
      const message = `the result of ${effect} was not stored: ${reason}`;
      throw new Failed('effect_result_invalid', message, { permanent: true });
    }
    return { ...state, failure: new Failed('effect_uncertain', `${effect} may have been done since ${state.since}`) };
  }

  async beginAgain(effect) {
    await this.undo(effect);
    return this.begin(effect);
  }

  async undo(effect) {
    await this.#ask({ effect, not_done: true });
  }

  async end(effect, result) {
    const done = plain(result);
    const reply = await this.#ask({ effect, done });
    if (reply.effect) throw new NotStored(effect, reply.effect.result_error, done);
    return done;
  }

  async #ask(line) {
    if (this.#acks === 0) this.#listen();
    const ack = ++this.#acks;
    const { error, unknown, ...reply } = await new Promise((resolve) => {
      this.#waiting.set(ack, resolve);
      this.send({ ...line, ack });
    });
    if (error) throw new NotCommitted(error, unknown);
    return reply;
  }

  #listen() {
    const socket = new Socket({ fd: this.#replies, readable: true, writable: false });
    createInterface({ input: socket }).on('line', (text) => {
      const reply = JSON.parse(text);
      // One without an ack is for a line that was too long, which may be any of these.
      for (const ack of reply.ack === undefined ? [...this.#waiting.keys()] : [reply.ack]) {
        this.#waiting.get(ack)?.(reply);
        this.#waiting.delete(ack);
      }
    });
  }
}

// Answer is a service's answer to the worker: one JSON value, or from the first report on lines of JSON.
//
// It gets no replies, so side effects are in its checkpoint, which the end of the attempt commits. One attempt
// records that an effect begins in the next one, whose lock token is greater by one, and ends. An attempt with
// another token may follow one that has acted.
class Answer {
  #fields;
  #response;
  #stop = new AbortController();
  #effects; // name -> {token} or {done}
  #used = new Set();
  ended; // the error that ends this attempt, also if analyze has caught it

  constructor(fields, response) {
    const { taskguard_effects: effects, checkpoint } = fields.checkpoint ?? {};
    this.resume = effects ? checkpoint : fields.checkpoint;
    this.#effects = { ...effects };
    this.#fields = fields;
    this.#response = response;
    response.on('close', () => { this.#stop.abort(new Error('the worker has closed the connection')); });
  }

  get signal() {
    return this.#stop.signal;
  }

  send(line, sent) {
    this.signal.throwIfAborted(); // ends an analysis for which nobody waits
    if (!this.#response.headersSent) this.#response.writeHead(200, { 'Content-Type': 'application/x-ndjson' });
    this.#response.write(`${JSON.stringify(line)}\n`, sent);
  }

  finish(line) {
    const { result, error, retry_after: wait } = line;
    const response = this.#response;
    if (response.headersSent) {
      response.end(`${JSON.stringify(line)}\n`);
      return;
    }
    const failed = wait ? 503 : 500;
    response.statusCode = 200;
    if (error) response.statusCode = error.permanent ? 422 : failed; // after 422, nothing is retried
    if (wait) response.setHeader('Retry-After', Math.ceil(wait));
    response.setHeader('Content-Type', 'application/json');
    response.end(JSON.stringify(error ? { error } : result));
  }

  async checkpoint(value) {
    this.resume = value;
    const effects = Object.keys(this.#effects).length > 0;
    const checkpoint = effects ? { taskguard_effects: this.#effects, checkpoint: value } : value;
    await new Promise((sent) => { this.send({ checkpoint }, sent); }); // a crash after this does not lose it
  }

  async begin(effect) {
    const { self_test: selfTest, lock_token: token, analysis_id: id } = this.#fields;
    if (selfTest) throw new Failed('act_in_self_test', `a self-test must not do ${effect}`, { permanent: true });
    if (this.#used.has(effect)) {
      throw new Failed('act_name_reused', `this run has used the name ${effect} before`, { permanent: true });
    }
    this.#used.add(effect);
    const recorded = this.#effects[effect];
    if (!recorded) return this.beginAgain(effect);
    if ('done' in recorded) return { state: 'done', result: recorded.done };

    const key = createHash('sha256').update(`${id}\0${effect}`).digest('hex').slice(0, 32);
    const doer = recorded.token + 1;
    if (doer === token) return { state: 'go', key };
    const message = `${effect} may have been done under lock token ${doer}`;
    return { state: 'uncertain', key, failure: new Failed('http_effect_uncertain', message, { permanent: true }) };
  }

  async beginAgain(effect) {
    await this.#record(effect, { token: this.#fields.lock_token });
    this.ended = new Failed('before_effect', `${effect} is planned; the next attempt does it (not a failure)`, { retryAfter: 1 });
    throw this.ended;
  }

  async undo(effect) {
    this.#used.delete(effect);
    await this.#record(effect, undefined);
  }

  async end(effect, result) {
    const done = plain(result);
    await this.#record(effect, { done });
    return done;
  }

  async #record(effect, record) {
    if (record) this.#effects[effect] = record;
    else delete this.#effects[effect];
    await this.checkpoint(this.resume ?? null);
  }
}
