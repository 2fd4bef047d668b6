export { Failure, NotDone, endpoint, run } from './analyzer.mjs';
export { SubmitError, submit } from './submit.mjs';
