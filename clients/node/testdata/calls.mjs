// Makes the calls that standard input asks for, a line of JSON each, and answers each with a line.
import { createInterface } from 'node:readline';
import { DocumentReference, Firestore } from '@google-cloud/firestore';
import { analysisLocks } from '../lock.mjs';

const { update } = DocumentReference.prototype;
const { runTransaction } = Firestore.prototype;
const faults = {
  none() {},
  // The reply to a commit is lost.
  lost() {
    DocumentReference.prototype.update = async function (...args) {
      await update.apply(this, args);
      throw new Error('the reply is lost');
    };
  },
  // Other writers are always faster, so that only runTransaction succeeds, and the first reply to it is
  // lost: then it calls its function again.
  contended() {
    DocumentReference.prototype.update = () => Promise.reject(new Error('another writer was faster'));
    Firestore.prototype.runTransaction = async function (decide) {
      await runTransaction.call(this, decide);
      return runTransaction.call(this, decide);
    };
  },
};

// made returns an argument; {"$": "…"} is the value of an expression that JSON cannot have.
function made(value) {
  return value?.$ ? (0, eval)(`(${value.$})`) : value;
}

const firestore = new Firestore(JSON.parse(process.env.SETTINGS ?? '{}'));
faults[process.env.FAULT ?? 'none']();
for await (const line of createInterface({ input: process.stdin })) {
  const { name, args, options } = JSON.parse(line);
  const warnings = [];
  const warn = (text, err) => warnings.push(`${text} ${err.message}`);
  const call = async (owner) => {
    try {
      const locks = analysisLocks(firestore, { warn, ...options });
      const answer = await locks[name](args[0], owner, ...args.slice(2).map(made));
      return typeof answer === 'string' ? { status: answer } : answer;
    } catch (err) {
      return { error: String(err.code ?? err.name) };
    }
  };
  const owners = Array.isArray(args[1]) ? args[1] : [args[1]]; // many: they call at the same time
  for (const answer of await Promise.all(owners.map(call))) console.log(JSON.stringify({ ...answer, warnings }));
}
