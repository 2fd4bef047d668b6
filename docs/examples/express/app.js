import express from 'express';
import { Firestore } from '@google-cloud/firestore';
import { submit } from 'taskguard';
import { tasksClient } from './tasks.js';

const { PORT = 8080 } = process.env;
const firestore = new Firestore();
const tasks = tasksClient();
const app = express().use(express.json());

app.post('/reports/:id', async (req, res) => {
  const { id } = req.params;
  await submit(id, req.body, { firestore, tasks });
  res.status(202).json({ id });
});

app.get('/reports/:id', async (req, res) => {
  const report = await firestore.collection('analyses').doc(req.params.id).get();
  res.json({ status: report.get('status'), result: report.get('result'), error: report.get('error') });
});

app.listen(PORT);
