// The first createTask fails, and the reply to the second is lost. The third must have the same name.
import { CloudTasksClient } from '@google-cloud/tasks';

const { createTask } = CloudTasksClient.prototype;
const names = [];
CloudTasksClient.prototype.createTask = async function (request) {
  names.push(request.task.name);
  if (names.length === 1) throw new Error('not yet');
  const created = await createTask.call(this, request);
  if (names.length === 2) throw new Error('the reply is lost');
  return created;
};

process.on('exit', () => {
  const calls = process.argv.at(-1) === 'second' ? 0 : 3; // the second submission finds the document finished
  if (names.length !== calls || new Set(names).size > 1) {
    console.error('createTask was called with the names', names);
    process.exitCode = 2;
  }
});
