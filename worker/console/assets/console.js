// @ts-check
// Keeps a page as the server last told it, and counts times on. All it shows was
// written by the server: whether a lock is held is never decided here.

/** @param {string} id @returns {any} */
const el = (id) => document.getElementById(id);
const source = document.body.dataset.events ?? '';

// ---- Times ----

/** When each counted time was written, by this browser's steady clock. */
const written = new WeakMap();

/** @param {number} ms as span() in words.go */
function span(ms) {
  const s = Math.max(Math.floor(ms / 1000), 0);
  const two = (/** @type {number} */ n) => String(n).padStart(2, '0');
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

/** @param {number} ms as age() in words.go */
function age(ms) {
  const s = Math.max(Math.floor(ms / 1000), 0);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 2 * 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

function count() {
  const told = feed?.word === 'live' && !paused && !broken && !unfollowed(); // else nobody can say who has renewed
  const now = performance.now();
  for (const e of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll('[data-left-ms], [data-age-ms]'))) {
    if (!written.has(e)) written.set(e, now);
    if (!told) continue;
    const passed = now - written.get(e);
    const { leftMs, ageMs } = e.dataset;
    const text = leftMs === undefined ? age(Number(ageMs) + passed) : span(Number(leftMs) - passed);
    if (e.textContent !== text) e.textContent = text;
  }
}

// ---- How the updates are ----

let broken = 0; // since when there are none, as a Date's number; 0: there are
let paused = false;
/** @type {{ word: string, at?: string, dark?: string, missing?: string } | null} */
let feed = null;
let asOf = ''; // when the one analysis was as it is shown, where that was told

const unfollowed = () => el('unfollowed')?.hidden === false;

/** Leaves alone what is there already: screen readers speak what is written. */
function showLive() {
  let word = 'live';
  let text = 'live';
  if (paused) [word, text] = ['paused', 'paused'];
  else if (broken) {
    word = 'reconnecting';
    text = `no updates: reconnecting since ${new Date(broken).toLocaleTimeString()}${failures > 3 ? '; reload to see why, or to sign in again' : ''}`;
  }
  else if (!feed || feed.word === 'waiting') [word, text] = ['connecting', 'connecting…'];
  else if (feed.word === 'dark') [word, text] = ['dark', feed.dark ?? ''];
  else if (unfollowed()) [word, text] = ['static', 'not followed'];
  el('live').dataset.live = word;
  if (el('live-text').textContent !== text) el('live-text').textContent = text;
}

// ---- What is told ----

/** @param {string} html of one element @param {string} parent its kind */
function parse(html, parent = 'div') {
  const inside = document.createElement('template');
  inside.innerHTML = parent === 'tbody' ? `<table><tbody>${html}</tbody></table>` : html;
  return /** @type {HTMLElement} */ (parent === 'tbody' ? inside.content.querySelector('tr') : inside.content.firstElementChild);
}

/** Keeps the focus where it was, although what had it is another element now. @param {() => void} change */
function keepFocus(change) {
  const had = document.activeElement;
  change();
  if (had?.id && had !== document.activeElement) el(had.id)?.focus({ preventScroll: true });
}

/** @param {any} news */
function hear(news) {
  feed = news.feed;
  if (el('rows')) hearRows(news);
  if (el('missing') && el('missing').textContent !== (feed?.missing ?? '')) el('missing').textContent = feed?.missing ?? '';
  if (el('missing')) el('missing').hidden = !feed?.missing;
  if (news.detail && el('facts')) el('facts').innerHTML = news.detail;
  if (el('unfollowed')) hearOfOne(news);
  el('full')?.remove();
  count();
  showLive();
}

/** @param {any} news */
function hearOfOne(news) {
  const gone = el('unfollowed');
  if (news.detail || news.gone) gone.hidden = !news.gone;
  if (news.detail || asOf && !news.gone) asOf = news.feed.at || asOf;
  if (news.gone && asOf) gone.textContent = `It is not among the analyses that were updated last any more, or is deleted: what is shown is as of ${asOf}. Reload for newer.`;
}

/** @param {any} news */
function hearRows(news) {
  const rows = el('rows');
  const rowOf = (/** @type {string} */ key) => rows.querySelector(`[data-key="${key}"]`);
  for (const { key, html } of news.rows ?? []) {
    const next = parse(html, 'tbody');
    const old = rowOf(key);
    if (old) old.replaceWith(next);
    else rows.append(next);
    if (el('found')?.querySelector(`[data-key="${key}"]`)) el('found').remove(); // it is among the latest now
  }
  if (news.order || news.empty) {
    const order = news.order ?? [];
    const keep = new Set(order);
    for (const row of [...rows.children]) if (!keep.has(row.dataset.key)) row.remove();
    order.forEach((/** @type {string} */ key, /** @type {number} */ i) => {
      const at = rows.children[i];
      if (at?.dataset.key !== key) rows.insertBefore(/** @type {Element} */ (rowOf(key)), at ?? null);
    });
    el('empty').hidden = order.length > 0;
  }
  if (news.tally) el('tally').innerHTML = news.tally;
}

// ---- The stream ----

const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const SILENCE_MS = 15000; // the server speaks each ten seconds
/** @type {EventSource | null} */
let stream = null;
let failures = 0;
let later = 0;

function listen() {
  close();
  const mine = new EventSource(source);
  stream = mine;
  expect();
  mine.onmessage = ({ data }) => {
    [broken, failures] = [0, 0];
    expect();
    keepFocus(() => hear(JSON.parse(data)));
  };
  mine.onerror = () => fail(false);
}

/** Gives up on a stream that says nothing. */
function expect() {
  clearTimeout(later);
  later = setTimeout(() => fail(true), SILENCE_MS);
}

function close() {
  clearTimeout(later);
  stream?.close();
  stream = null;
}

/** @param {boolean} silent else the server, or its end of the line, has said that it is over */
function fail(silent) {
  close();
  broken ||= Date.now();
  later = setTimeout(listen, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
  failures += 1;
  // The server ends a stream from time to time; only what lasts is worth a word.
  if (silent || failures > 1) showLive();
}

/** Listens while the page is looked at: a browser grants a site six connections. */
function listenIfLooked() {
  [broken, failures, feed] = [0, 0, null];
  if (paused || document.hidden) close();
  else listen();
  showLive();
}

function pause() {
  paused = !paused;
  el('pause').setAttribute('aria-pressed', String(paused));
  listenIfLooked();
}

if (source && el('live')) {
  el('pause').hidden = false;
  el('pause').onclick = pause;
  addEventListener('pagehide', close);
  addEventListener('pageshow', ({ persisted }) => { if (persisted) listenIfLooked(); });
  document.addEventListener('visibilitychange', listenIfLooked);
  setInterval(count, 1000);
  count();
  listenIfLooked();
}
