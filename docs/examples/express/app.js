import express from 'express';
import { Firestore } from '@google-cloud/firestore';
import { OtherInput, submit } from 'taskguard';
import { analyze } from './analyze.js';
import { tasksClient } from './tasks.js';

const { ANALYSES_COLLECTION, PORT = 8080 } = process.env;
const firestore = new Firestore();
const analyses = firestore.collection(ANALYSES_COLLECTION || 'analyses');
const reports = firestore.collection('reports');
const before = { queued: 'QUEUED', running: 'PROCESSING', done: 'READY' };
const tasks = tasksClient();
const app = express().use(express.json());

app.post('/reports/:id', async (req, res) => {
  const { id } = req.params;
  try {
    await submit(id, req.body, { firestore, tasks });
  } catch (err) {
    if (!(err instanceof OtherInput)) throw err;
    return res.status(409).json({ error: err.message });
  }
  res.status(202).json({ id });
});

app.get('/reports/:id', async (req, res) => {
  const { id } = req.params;
  const report = (await analyses.doc(id).get()).data() ?? (await reports.doc(id).get()).data() ?? {};
  const { status, result, error } = report;
  res.json({ status: before[status] ?? status, result, error });
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
