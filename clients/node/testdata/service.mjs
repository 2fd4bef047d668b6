// ANALYZER=http://localhost:8600: with Express, it would be app.post('/analyze', endpoint(analyze))
import { createServer } from 'node:http';
import { endpoint } from 'taskguard';
import { analyze } from './analysis.mjs';

const server = createServer(endpoint(analyze));
server.listen(Number(process.env.PORT ?? 8600), 'localhost', () => {
  console.log(server.address().port);
});
