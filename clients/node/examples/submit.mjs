// Submits an analysis: node submit.mjs ID INPUT
import { Firestore } from '@google-cloud/firestore';
import { CloudTasksClient } from '@google-cloud/tasks';
import { grpc } from 'google-gax';
import { submit } from 'taskguard';

const [host, port] = process.env.CLOUD_TASKS_EMULATOR_HOST?.split(':') ?? [];
const emulator = { apiEndpoint: host, port: Number(port), sslCreds: grpc.credentials.createInsecure() };
const clients = { firestore: new Firestore(), tasks: new CloudTasksClient(host ? emulator : {}) };

const [id, input] = process.argv.slice(2);
console.log(JSON.stringify(await submit(id, JSON.parse(input), clients)));
