// Makes the session of a signed-in user for doclock, the cookie doclock_session.
//
// On the command line it prints the cookie: SESSION_SECRET=… node session.js ID [NAME [USER]]
import { createHmac } from 'node:crypto';
import { pathToFileURL } from 'node:url';

// doclockSession returns the cookie's value for a user's id, such as an e-mail address, and
// display name. user is the id that others see in events, often the same as id. '' publishes no
// name or no id.
export function doclockSession(secret, id, name = '', user = '') {
  if (!id) throw new RangeError('the id is empty');
  const parts = ['v1', encodeURIComponent(id).replaceAll('.', '%2E'), Math.floor(Date.now() / 1000)];
  if (name + user !== '') parts.push(Buffer.from(name).toString('base64url'));
  if (user !== '') parts.push(Buffer.from(user).toString('base64url'));
  const signed = parts.join('.');
  return `${signed}.${createHmac('sha256', secret).update(`doclock_session\n${signed}`).digest('base64url')}`;
}

// doclockCookie returns the header Set-Cookie that sets such a value, or with '' deletes it
// when the user signs out. If doclock is on another host, such as locks.example.com, domain
// is the domain of both, example.com. Over http, as in development, secure is false.
export function doclockCookie(value, domain = '', secure = true) {
  const age = value === '' ? 0 : 30 * 24 * 60 * 60;
  return `doclock_session=${value}; Path=/; Max-Age=${age}; HttpOnly; ${secure ? 'Secure; ' : ''}SameSite=Lax${domain && `; Domain=${domain}`}`;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  console.log(`doclock_session=${doclockSession(process.env.SESSION_SECRET, ...process.argv.slice(2))}`);
}
