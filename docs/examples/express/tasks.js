// Google's client for Cloud Tasks does not read CLOUD_TASKS_EMULATOR_HOST, as the one for Firestore reads its own.
import { CloudTasksClient } from '@google-cloud/tasks';
import { grpc } from 'google-gax';

export function tasksClient(emulator = process.env.CLOUD_TASKS_EMULATOR_HOST) {
  if (!emulator) return new CloudTasksClient();
  const [host, port] = emulator.split(':');
  return new CloudTasksClient({ apiEndpoint: host, port: Number(port), sslCreds: grpc.credentials.createInsecure() });
}
