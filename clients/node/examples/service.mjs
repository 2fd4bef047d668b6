// ANALYZER=http://localhost:8600
import { createServer } from 'node:http';
import { endpoint } from 'taskguard';
import { analyze } from './analysis.mjs';

createServer(endpoint(analyze)).listen(process.env.PORT ?? 8600, 'localhost'); // app.post('/analyze', endpoint(analyze))
