import { acquireProjectLock, subscribeAllLockEvents, subscribeLockEvents } from 'taskguard-locks';

let [events, all] = [0, 0];
subscribeLockEvents(() => { events++; });
subscribeAllLockEvents(() => { all++; });
let reason;
const { code, retryable } = await acquireProjectLock({ onReadonly: (info) => { reason = info.reason; } }).catch((error) => error);
console.log(JSON.stringify([code, retryable, reason, events, all]));
