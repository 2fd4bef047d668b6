// ANALYZER="exec:node program.mjs"
import { run } from 'taskguard';
import { analyze } from './analysis.mjs';

await run(analyze);
