// What an analyzer in Node needs: run for a program (ANALYZER=exec:node analyzer.mjs), and endpoint for a
// service (ANALYZER=http://…). Both call your function with a Job, and store what it returns as the result.
//
//   await run(async (job) => ({ pages: job.input.pages }));
import { createHash } from 'node:crypto';
import { writeSync } from 'node:fs';
import { Socket } from 'node:net';
import { createInterface } from 'node:readline';

const exitRejected = 65; // the exit status of a permanent failure

/** Failure is an error with a code. It is temporary, so the analysis is retried, unless permanent is true. */
export class Failure extends Error {
  constructor(code, message, { permanent = false, retryAfter, cause } = {}) {
    super(message, { cause });
    this.name = 'Failure';
    this.code = code;
    this.permanent = permanent;
    this.retryAfter = retryAfter;
  }

  // line returns the failure as the last line of a run.
  get line() {
    const { code, message, permanent, retryAfter } = this;
    return { error: { code, message, permanent: permanent || undefined }, retry_after: retryAfter };
  }
}

/** NotDone tells once that its side effect did not happen. once then throws the cause. */
export class NotDone extends Error {
  constructor(cause) {
    super('the side effect was not done', { cause });
    this.name = 'NotDone';
  }
}

/** Job is one attempt at one analysis. */
class Job {
  #worker;

  constructor(fields, worker) {
    this.id = fields.analysis_id;
    this.token = fields.lock_token;
    this.attempt = fields.attempt;
    this.input = fields.input;
    this.resume = fields.checkpoint ?? null;
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
      if (found !== undefined) return this.#worker.done(name, found);
      effect = await this.#worker.beginAgain(name);
    }
    if (effect.state === 'done') return effect.result;

    let result;
    try {
      result = await act(effect.key);
    } catch (err) {
      if (!(err instanceof NotDone)) throw err; // it may have happened
      await this.#worker.notDone(name);
      throw err.cause;
    }
    return this.#worker.done(name, result ?? null);
  }
}

/** run is a program: it reads the job, calls analyze, prints its result, and exits. */
export async function run(analyze) {
  const print = process.stdout.write.bind(process.stdout);
  process.stdout.write = process.stderr.write.bind(process.stderr); // what console.log writes is no result

  let text = '';
  for await (const chunk of process.stdin.setEncoding('utf8')) text += chunk;
  const worker = new Pipes(process.env);
  let status = 0;
  try {
    const result = JSON.stringify((await analyze(new Job(JSON.parse(text), worker))) ?? null);
    await new Promise((printed) => { print(`${result}\n`, printed); });
  } catch (err) {
    status = err instanceof Failure && err.permanent ? exitRejected : 1;
    if (err instanceof Failure) worker.send(err.line);
    // Without a line, the worker stores the end of this as the message.
    await new Promise((printed) => { process.stderr.write(`${err?.stack ?? err}\n`, printed); });
  }
  process.exit(status);
}

// Pipes reach the worker of a program: lines on REPORT_FD, and replies on REPLY_FD. A program that you start
// yourself has neither. Then reports are dropped, and no side effect begins.
class Pipes {
  #report;
  #reply;
  #stop;
  #acks = 0;
  #waiting = new Map(); // ack -> the function that takes the reply

  constructor({ REPORT_FD, REPLY_FD }) {
    this.#report = REPORT_FD && Number(REPORT_FD);
    this.#reply = REPLY_FD && Number(REPLY_FD);
  }

  // Without this, SIGTERM ends the program at once, as is right for one that does not ask.
  get signal() {
    if (!this.#stop) {
      this.#stop = new AbortController();
      process.on('SIGTERM', () => this.#stop.abort(new Error('the worker ends this run')));
    }
    return this.#stop.signal;
  }

  send(line) {
    if (!this.#report) return;
    for (let rest = Buffer.from(`${JSON.stringify(line)}\n`); rest.length > 0;) {
      rest = rest.subarray(writeSync(this.#report, rest));
    }
  }

  async checkpoint(checkpoint, wait) {
    if (wait && this.#reply) await this.#ask({ checkpoint });
    else this.send({ checkpoint });
  }

  async begin(effect) {
    if (!this.#reply) throw new Failure('not_committed', 'there is no worker that could record a side effect');
    const reply = await this.#ask({ effect });
    const { result_error: reason, ...state } = reply.effect;
    if (reason !== undefined) throw notStored(effect, reason);
    return { ...state, failure: new Failure('effect_uncertain', `${effect} may have been done since ${state.since}`) };
  }

  async beginAgain(effect) {
    await this.notDone(effect);
    return this.begin(effect);
  }

  async notDone(effect) {
    await this.#ask({ effect, not_done: true });
  }

  async done(effect, result) {
    const reply = await this.#ask({ effect, done: result });
    if (reply.effect) throw notStored(effect, reply.effect.result_error);
    return decoded(result);
  }

  async #ask(line) {
    if (this.#acks === 0) this.#listen();
    const ack = ++this.#acks;
    const { error, unknown, ...reply } = await new Promise((resolve) => {
      this.#waiting.set(ack, resolve);
      this.send({ ...line, ack });
    });
    if (error) throw new Failure(unknown ? 'commit_unknown' : 'not_committed', error);
    return reply;
  }

  #listen() {
    const socket = new Socket({ fd: this.#reply, readable: true, writable: false });
    createInterface({ input: socket }).on('line', (text) => {
      const reply = JSON.parse(text);
      // A reply without an ack is for a line that was too long: it may be any of these.
      for (const ack of reply.ack === undefined ? [...this.#waiting.keys()] : [reply.ack]) {
        this.#waiting.get(ack)?.(reply);
        this.#waiting.delete(ack);
      }
    });
  }
}

function notStored(effect, reason) {
  return new Failure('effect_result_invalid', `the result of ${effect} was not stored: ${reason}`, { permanent: true });
}

// decoded returns a value as a later attempt gets it.
function decoded(value) {
  return JSON.parse(JSON.stringify(value));
}

/** endpoint returns a handler for Express and node:http that answers the worker's POST. */
export function endpoint(analyze) {
  return async (request, response) => {
    const fields = await parse(request).catch(() => undefined);
    const worker = new Answer(fields ?? {}, response);
    try {
      if (!fields) throw new Failure('bad_job', 'the body is no JSON', { permanent: true });
      worker.end({ result: (await analyze(new Job({ ...fields, checkpoint: worker.resume }, worker))) ?? null });
    } catch (err) {
      if (!(err instanceof Failure)) console.error(err);
      worker.end((err instanceof Failure ? err : new Failure(undefined, String(err))).line);
    }
  };
}

async function parse(request) {
  if (request.body !== null && typeof request.body === 'object') return request.body; // by express.json()
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks));
}

// Answer is a service's answer to the worker: one JSON value, or from the first report on lines of JSON. There
// are no replies, so side effects are recorded in the checkpoint, which the end of the attempt commits: one
// attempt records that the effect will begin, and the next one does it. A later one does not know.
class Answer {
  #fields;
  #response;
  #stop = new AbortController();
  #effects = {}; // name -> {token}: the next attempt after this one does it; or {done}
  #begun = new Set();

  constructor(fields, response) {
    const { taskguard_effects: effects, checkpoint } = fields.checkpoint ?? {};
    this.#fields = fields;
    this.#effects = { ...effects };
    this.resume = effects ? checkpoint : fields.checkpoint;
    this.#response = response;
    response.on('close', () => { this.#stop.abort(new Error('the worker has closed the connection')); });
  }

  get signal() {
    return this.#stop.signal;
  }

  send(line) {
    this.signal.throwIfAborted(); // ends an analysis that nobody waits for
    if (!this.#response.headersSent) this.#response.writeHead(200, { 'Content-Type': 'application/x-ndjson' });
    this.#response.write(`${JSON.stringify(line)}\n`);
  }

  end({ result, error, retry_after: wait }) {
    const response = this.#response;
    if (response.headersSent) {
      response.end(`${JSON.stringify({ result, error, retry_after: wait })}\n`);
      return;
    }
    const body = JSON.stringify(error ? { error } : result);
    response.statusCode = error ? errorStatus(error, wait) : 200;
    if (error && wait) response.setHeader('Retry-After', Math.ceil(wait));
    response.setHeader('Content-Type', 'application/json');
    response.end(body);
  }

  async checkpoint(value) {
    this.resume = value;
    const effects = Object.keys(this.#effects).length > 0;
    this.send({ checkpoint: effects ? { taskguard_effects: this.#effects, checkpoint: value } : value });
  }

  async begin(effect) {
    const { self_test: selfTest, lock_token: token } = this.#fields;
    if (selfTest) throw new Failure('act_in_self_test', `a self-test must not begin ${effect}`, { permanent: true });
    if (this.#begun.has(effect)) throw new Failure('act_name_reused', `this run has begun ${effect}`, { permanent: true });
    const recorded = this.#effects[effect];
    if (!recorded) return this.beginAgain(effect);
    if ('done' in recorded) return { state: 'done', result: recorded.done };

    const key = createHash('sha256').update(`\0${this.#fields.analysis_id}\0${effect}`).digest('hex').slice(0, 32);
    const doer = recorded.token + 1;
    if (doer === token) {
      this.#begun.add(effect);
      return { state: 'go', key };
    }
    const message = `${effect} may have been done under lock token ${doer}`;
    return { state: 'uncertain', key, failure: new Failure('http_effect_uncertain', message, { permanent: true }) };
  }

  async beginAgain(effect) {
    await this.#record(effect, { token: this.#fields.lock_token });
    throw new Failure('before_effect', `${effect} begins in the next attempt`, { retryAfter: 1 });
  }

  async notDone(effect) {
    this.#begun.delete(effect);
    await this.#record(effect, undefined);
  }

  async done(effect, result) {
    await this.#record(effect, { done: result });
    return decoded(result);
  }

  async #record(effect, record) {
    this.#effects[effect] = record;
    if (!record) delete this.#effects[effect];
    await this.checkpoint(this.resume ?? null);
  }
}

// A status says whether the failure is permanent: 422 is, and the two others are not.
function errorStatus({ permanent }, wait) {
  if (permanent) return 422;
  return wait ? 503 : 500;
}
