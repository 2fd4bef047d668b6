import express from 'express';
import { Firestore } from '@google-cloud/firestore';
import { CloudTasksClient } from '@google-cloud/tasks';
import { analyze } from './analyze.js';

const { PORT = 8080, TASK_CALLER, TASK_QUEUE, SELF_URL } = process.env;
const reports = new Firestore().collection('reports');
const tasks = new CloudTasksClient();
const app = express().use(express.json());

app.post('/reports/:id', async (req, res) => {
  const { id } = req.params;
  await reports.doc(id).set({ status: 'queued', input: req.body });
  await tasks.createTask({
    parent: TASK_QUEUE,
    task: {
      httpRequest: {
        httpMethod: 'POST',
        url: `${SELF_URL}/tasks/report`,
        headers: { 'Content-Type': 'application/json' },
        body: Buffer.from(JSON.stringify({ id })),
        oidcToken: { serviceAccountEmail: TASK_CALLER },
      },
    },
  });
  res.status(202).json({ id });
});

app.get('/reports/:id', async (req, res) => {
  const report = await reports.doc(req.params.id).get();
  res.json({ status: report.get('status'), result: report.get('result') });
});

app.post('/tasks/report', async (req, res) => {
  const report = reports.doc(req.body.id);
  const { status, input } = (await report.get()).data();
  if (status === 'done') return res.end();
  await report.update({ status: 'running' });
  await report.update({ status: 'done', result: await analyze(input) });
  res.end();
});

app.listen(PORT);
