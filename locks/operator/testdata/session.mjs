// A session's own program: for each operator that is named on a line of the input it reads the state
// file, takes the operator unless another session has it, and prints whether it has it now.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import lockfile from 'proper-lockfile';

const [file, session] = process.argv.slice(2);

async function assign(operator) {
  const unlock = await lockfile.lock(file, { realpath: false, retries: { retries: 200, minTimeout: 2, maxTimeout: 10 } });
  try {
    const state = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : { storage: {} };
    const others = Object.entries(state.storage).filter(([id]) => id !== session);
    if (others.some(([, { data }]) => data === operator)) return 'busy';
    state.storage[session] = { data: operator, updated_at: new Date().toISOString() };
    writeFileSync(file, JSON.stringify(state));
    return 'taken';
  } finally {
    await unlock();
  }
}

for await (const operator of createInterface({ input: process.stdin })) console.log(await assign(operator));
