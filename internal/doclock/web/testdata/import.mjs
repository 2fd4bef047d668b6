import { acquireProjectLock, subscribeLockEvents } from 'taskguard-locks';

let events = 0;
subscribeLockEvents(() => { events++; });
let reason;
const { code, retryable } = await acquireProjectLock({ onReadonly: (info) => { reason = info.reason; } }).catch((error) => error);
console.log(JSON.stringify([code, retryable, reason, events]));
