import express from 'express';
import { endpoint, Failed } from 'taskguard';
import { analyze } from './analyze.js';

const app = express();

app.get('/health', (req, res) => res.end());

app.post('/analyze', endpoint(async (job) => {
  if (!(job.input?.pages > 0)) throw new Failed('no_pages', 'the report has no pages', { permanent: true });
  return analyze(job.input);
}));

app.listen(process.env.APP_PORT ?? 9000);
