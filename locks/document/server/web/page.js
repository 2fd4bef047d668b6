// @ts-check
import {
  acquireProjectLock, confirmProjectLock, releaseProjectLock, renewProjectLock, subscribeLockEvents,
} from './locks.js';

/** @typedef {import('./locks.js').ProjectLockLease} Lease */
/** @typedef {{ type: string, holder: string, expires_at: string | null, reason: string, version: number }} Notice */

/** @param {string} id @returns {any} */
const el = (id) => document.getElementById(id);
const room = new URLSearchParams(location.search).get('room') || 'imgponic:project';
const lockPath = `/api/documents/${encodeURIComponent(room)}/lock`;
const textKey = `text of ${room}`;

/** @type {Lease | null} */
let lease = null;
/** @type {Notice | null} the newest event of the server */
let notice = null;
let connected = false;
let acquiring = false;

// ---- What is shown ----

function show() {
  const other = notice?.type === 'DocumentLocked' && notice.holder !== lease?.holder;
  const state = lease ? 'mine' : acquiring ? 'acquiring' : !connected ? 'connecting' : other ? 'other' : 'free';
  const until = (/** @type {string} */ iso) => new Date(iso).toLocaleTimeString();
  el('state').dataset.state = state;
  write('headline', {
    mine: 'You edit',
    acquiring: 'Asking for the lock…',
    connecting: 'Connecting…',
    other: 'Someone else edits',
    free: 'Free',
  }[state]);
  write('detail', {
    mine: lease && `Yours until ${until(lease.expiresAt)}, and renewed before that. Token ${lease.token}.`,
    acquiring: '',
    connecting: 'Waiting for the server.',
    other: notice?.expires_at && `Until ${until(notice.expires_at)}, unless it is renewed.`,
    free: 'The document is free to edit.',
  }[state]);
  el('text').readOnly = !lease;
  el('edit').disabled = acquiring || lease !== null;
  el('save').disabled = el('release').disabled = !lease;
}

/**
 * Writes only changes, because screen readers read out each one.
 * @param {string} id @param {string | null | undefined} text
 */
function write(id, text) {
  if (el(id).textContent !== (text ?? '')) el(id).textContent = text ?? '';
}

/** @param {string} message empty: none */
function warn(message) {
  el('banner').textContent = message;
  el('banner').hidden = !message;
}

/** @param {string} line */
function log(line) {
  const time = document.createElement('time');
  time.textContent = new Date().toLocaleTimeString();
  const item = document.createElement('li');
  item.append(time, line);
  el('log').prepend(item);
  while (el('log').childElementCount > 200) el('log').lastElementChild.remove();
}

// ---- The lock ----

const WHY = {
  'acquire-denied': 'someone else is editing',
  'fallback-conflict': 'someone else is editing',
  'acquire-timeout': 'the server cannot be reached',
  'web-lock-unsupported': 'this browser has no Web Locks',
  'lease-stale': 'your lock has ended',
  'renew-failed': 'your lock could not be renewed',
  'release-failed': 'your lock could not be released, and ends by itself',
};

/** @type {Record<string, string>} */
const REFUSED = { too_many_locks: 'you hold too many locks', not_permitted: 'you may not edit this document' };

/** @param {import('./locks.js').ProjectLockReadonlyInfo} info */
function onReadonly({ reason, lastError }) {
  lease = null;
  const why = REFUSED[String(lastError.context?.error)] ?? WHY[reason];
  warn(`Read-only: ${why}. Press Edit to try again.`);
  show();
}

async function edit() {
  acquiring = true;
  warn('');
  show();
  try {
    lease = await acquireProjectLock({ resource: room, onReadonly });
    el('text').focus();
  } catch {
    // onReadonly has shown the reason.
  }
  acquiring = false;
  show();
}

/** Writes only right after the server has confirmed the lock. */
async function save() {
  if (!lease) return;
  const text = el('text').value;
  try {
    const { token } = await confirmProjectLock(lease);
    localStorage.setItem(textKey, text);
    el('saved').textContent = `Saved with token ${token}.`;
    log(`saved with token ${token}`);
  } catch (error) {
    el('saved').textContent = 'Not saved: the server did not confirm the lock.';
    log(`not saved: ${error}`);
  }
}

async function release() {
  if (!lease) return;
  const mine = lease;
  lease = null;
  show();
  await releaseProjectLock(mine).catch(() => {}); // onReadonly has shown the reason
  el('edit').focus();
}

/** @param {import('./locks.js').ProjectLockEvent} event */
function onEvent(event) {
  const { type, ...details } = event;
  if ('lease' in event && lease?.leaseId === event.lease.leaseId) lease = event.lease;
  if ('info' in event) log(`${type} reason=${event.info.reason}`);
  else log([type, ...Object.entries(details).flatMap(([k, v]) => (typeof v === 'object' ? [] : `${k}=${v}`))].join(' '));
  show();
}

// ---- Events of the server ----

const RECONNECT_MS = [500, 1000, 2000, 5000, 10000];
const EXPIRED = 4401; // the session or the permission has to be proved again, by a new socket

function listen(failures = 0) {
  const url = new URL(`${lockPath}/ws`, location.href);
  url.protocol = url.protocol.replace('http', 'ws');
  const socket = new WebSocket(url);
  socket.onmessage = ({ data }) => {
    connected = true;
    failures = 0;
    receive(JSON.parse(data));
  };
  socket.onclose = ({ code }) => {
    if (code === EXPIRED && connected) return listen(1);
    connected = false;
    show();
    if (failures === 1) explain();
    setTimeout(listen, RECONNECT_MS[Math.min(failures, RECONNECT_MS.length - 1)], failures + 1);
  };
}

/** A browser does not tell why a socket was refused: the same request without a socket does. */
async function explain() {
  const answer = await fetch(lockPath, { cache: 'no-store', signal: AbortSignal.timeout(5000) }).catch(() => null);
  if (answer?.status === 401) warn('Your session has ended. Sign in, and load this page again.');
  if (answer?.status === 403) warn('You may not see this document.');
}

/** @param {Notice} event */
function receive(event) {
  if (!notice || event.version > notice.version) log(`server: ${event.type} reason=${event.reason}`);
  if (!notice || event.version >= notice.version) notice = event;
  // The lock is no longer ours, perhaps by an operator's unlock: a renewal finds out.
  if (lease && notice === event && event.holder !== lease.holder) renewProjectLock(lease).catch(() => {});
  show();
  refreshAtExpiry();
}

let refresh = 0;

/** A renewal is no event: when the known expiry passes, asks for the present one. */
function refreshAtExpiry() {
  clearTimeout(refresh);
  if (notice?.type !== 'DocumentLocked' || !notice.expires_at) return;
  const inMs = Math.min(Math.max(Date.parse(notice.expires_at) - Date.now(), 1000), 30000);
  refresh = setTimeout(async () => {
    const asked = notice;
    const state = await fetch(lockPath, { cache: 'no-store', signal: AbortSignal.timeout(5000) })
      .then((answer) => answer.json()).catch(() => null);
    if (asked !== notice || !notice) return; // a newer event has arrived
    if (state?.is_locked) notice = { ...notice, expires_at: state.expires_at };
    show();
    refreshAtExpiry();
  }, inMs);
}

// ---- Start ----

el('room').value = room;
el('text').value = localStorage.getItem(textKey) ?? '';
el('edit').onclick = edit;
el('save').onclick = save;
el('release').onclick = release;
addEventListener('storage', ({ key, newValue }) => {
  if (key === textKey && !lease) el('text').value = newValue ?? '';
});
addEventListener('keydown', (event) => {
  if (event.key !== 's' || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  save();
});
subscribeLockEvents(onEvent);
listen();
show();
