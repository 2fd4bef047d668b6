// The analyzer.js of docs/from-express.md, which resumes after a crash.
import { setTimeout } from 'node:timers/promises';
import express from 'express';
import { endpoint } from 'taskguard';

const app = express();

app.get('/health', (req, res) => res.end());

app.post('/analyze', endpoint(async (job) => {
  const { pages } = job.input;
  const state = job.resume ?? { done: 0, words: 0 };
  while (state.done < pages) {
    await setTimeout(100); // the expensive work on one page
    state.done += 1;
    state.words += 250;
    job.report(state.done / pages, `page ${state.done} of ${pages}`);
    await job.checkpoint(state);
  }
  return { pages, words: state.words };
}));

app.listen(process.env.APP_PORT ?? 9000);
