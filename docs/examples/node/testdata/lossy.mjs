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
  const booked = names.length === 3 && new Set(names).size === 1;
  if (names.length > 0 && !booked) {
    console.error('createTask was called with the names', names);
    process.exitCode = 2;
  }
});
