// Evaluates each line of standard input, a script as JSON, and prints its value.
import { createInterface } from 'node:readline';
import Echo from 'laravel-echo';
import Pusher from 'pusher-js';
import './client.js';

Object.assign(globalThis, { Echo, Pusher });
for await (const line of createInterface({ input: process.stdin })) {
  let result;
  try {
    result = { value: JSON.stringify(await eval?.(JSON.parse(line))) ?? '' };
  } catch (error) {
    result = { error: String(error) };
  }
  console.log(JSON.stringify(result));
}
process.exit();
