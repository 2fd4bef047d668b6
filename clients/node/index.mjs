export { Failed, NotCommitted, NotDone, NotStored, endpoint, run } from './analyzer.mjs';
export { NotEnqueued, OtherInput, submit } from './submit.mjs';
