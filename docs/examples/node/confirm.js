// Asks doclock, right before the application saves, whether the user who sends the request
// still holds the lock of the document.
//
// On the command line it prints the answer: COOKIE=… node confirm.js URL ROOM [TOKEN [CLIENT]]
import { pathToFileURL } from 'node:url';

// doclockConfirm returns how many milliseconds the lock certainly stays valid, or 0 if it is
// not the user's: then do not save. It throws if doclock does not answer. base is doclock's
// address, cookies the request's header Cookie, token that of the lock, and client the
// X-Lock-Client of the request that took it (of locks.js: lease.client). Without a token, it does
// not matter whether the user has lost the lock in between and taken it again.
export async function doclockConfirm(base, room, token, cookies = '', client = '') {
  const [, session = ''] = /(?:^|;\s*)(doclock_session=[^;]*)/.exec(cookies) ?? [];
  const query = token === undefined ? '' : `?token=${Number(token)}`;
  const answer = await fetch(`${base}/api/documents/${encodeURIComponent(room)}/lock/confirm${query}`, {
    headers: { Cookie: session, ...(client && { 'X-Lock-Client': client }) }, signal: AbortSignal.timeout(8000),
  });
  if (answer.status >= 500) throw new Error('doclock does not answer');
  const { valid_for_ms: validForMs = 0 } = await answer.json();
  return validForMs;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [base, room, token, client] = process.argv.slice(2);
  console.log(await doclockConfirm(base, room, token || undefined, process.env.COOKIE, client));
}
