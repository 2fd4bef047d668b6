// @ts-check
// Requests the page again every few seconds while it is visible, replaces what has
// changed, and counts times. The server wrote everything that is shown: whether a
// lock is held is never decided here.

/** @param {string} id @returns {any} */
const el = (id) => document.getElementById(id);
const address = document.body.dataset.poll ?? '';

// ---- Times ----

/** @param {number} ms as span() in format.go */
function span(ms) {
  const s = Math.max(Math.floor(ms / 1000), 0);
  const two = (/** @type {number} */ n) => String(n).padStart(2, '0');
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

/** @param {number} ms as age() in format.go */
const age = (ms) => span(ms).split(' ', 2).join(' ');

let store = 0; // the store's time of what is shown, in milliseconds
let arrived = 0; // when that was shown, by this browser's steady clock

/** Updates the times left and the ages. @param {Document} page */
function count(page) {
  const now = store + (liveState === 'live' ? performance.now() - arrived : 0); // else a holder may have renewed
  for (const e of /** @type {NodeListOf<HTMLElement>} */ (page.querySelectorAll('[data-until], [data-since]'))) {
    const { until, since } = e.dataset;
    const text = until === undefined ? age(now - Number(since)) : span(Number(until) - now);
    if (e.textContent !== text) e.textContent = text;
  }
}

// ---- Local times ----

/** Shows times of day in this browser's zone, and UTC on hover; other times have both on hover. @param {Document} page */
function localTimes(page) {
  for (const e of /** @type {NodeListOf<HTMLTimeElement>} */ (page.querySelectorAll('time[data-local]'))) {
    const at = new Date(e.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const clock = at.toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit' });
    if (e.dataset.local === 'clock') e.textContent = clock;
    else if (e.dataset.local === 'moment') e.textContent = at.toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
    else e.title = `${at.toLocaleString()} (${e.title})`;
    delete e.dataset.local; // once
  }
}

// ---- What is shown ----

let liveState = ''; // live, unavailable, reconnecting, connecting or paused

/** Writes only what differs: screen readers speak each write. @param {string} next @param {string} text */
function setStatus(next, text) {
  el('live').dataset.live = liveState = next;
  if (el('live-text').textContent !== text) el('live-text').textContent = text;
}

/** @param {string} message */
const setNoAnswer = (message) => setStatus('reconnecting', message + (el('live').dataset.at ? ` What is shown is as of ${el('live').dataset.at}.` : ''));

/** Shows how old page is. @param {Document} page */
function setTime(page) {
  const { live, now, at } = /** @type {HTMLElement} */ (page.getElementById('live')).dataset;
  if (live === 'unavailable') setStatus('unavailable', page.getElementById('live-text')?.textContent ?? '');
  else setStatus('live', 'live');
  [store, arrived, el('live').dataset.at] = [Number(now), performance.now(), at];
}

/** Shows page, which is this one as it is now. @param {Document} page */
function show(page) {
  setTime(page);
  localTimes(page);
  count(page);
  count(document);
  const had = document.activeElement;
  for (const id of ['tally', 'codes', 'backlog-line', 'backlog-now', 'matching', 'aside', 'notes', 'why', 'answers', 'facts', 'errors', 'acts', 'timeline', 'lock']) replace(el(id), page.getElementById(id));
  const rows = page.getElementById('rows');
  if (rows) showRows(el('rows'), rows);
  showSelection();
  if (had?.id && had !== document.activeElement) el(had.id)?.focus({ preventScroll: true }); // its element was replaced
}

/** Replaces old, and keeps open or folded what is. @param {Element | null} old @param {Element | null} next */
function replace(old, next) {
  if (!old || !next) return old;
  for (const { id, open } of old.querySelectorAll('details')) next.querySelector(`details#${id}`)?.toggleAttribute('open', open);
  if (old.isEqualNode(next)) return old;
  old.replaceWith(next);
  return next;
}

/** @param {Element} rows @param {Element} next */
function showRows(rows, next) {
  const wanted = [...next.children];
  for (const row of [...rows.children]) if (!wanted.some(({ id }) => id === row.id)) row.remove();
  wanted.forEach((row, i) => {
    const old = rows.querySelector(`#${row.id}`);
    const now = old ? replace(old, row) : row;
    if (now && rows.children[i] !== now) rows.insertBefore(now, rows.children[i] ?? null);
  });
}

// ---- The selection ----

/** The ids that are selected: a row that is replaced loses its mark. @type {Set<string>} */
const selected = new Set();

/** @returns {HTMLInputElement[]} */
const picks = () => [...document.querySelectorAll('#rows input[form=selection]')].map((e) => /** @type {HTMLInputElement} */ (e));

/** Marks what is selected, forgets what is not listed any more, and says how many there are. */
function showSelection() {
  if (!el('selection')) return;
  const all = picks();
  for (const id of selected) if (!all.some(({ value }) => value === id)) selected.delete(id);
  el('selection').hidden = !all.length;
  for (const pick of all) pick.checked = selected.has(pick.value);
  const n = selected.size;
  const most = Number(el('selection').dataset.most);
  const text = n > most ? `${n} selected: select at most ${most}.` : n ? `${n} selected:` : 'None selected.';
  if (el('selected').textContent !== text) el('selected').textContent = text;
  el('requeue-selected').disabled = el('cancel-selected').disabled = !n || n > most;
  el('pick-all').hidden = !all.length;
  el('pick-all').checked = n > 0 && n === all.length;
  el('pick-all').indeterminate = n > 0 && n < all.length;
}

/** @param {Iterable<HTMLInputElement>} changed */
function select(changed) {
  for (const { value, checked } of changed) {
    if (checked) selected.add(value);
    else selected.delete(value);
  }
  showSelection();
}

if (el('selection')) {
  el('rows').addEventListener('change', (/** @type {Event} */ { target }) => select([/** @type {HTMLInputElement} */ (target)]));
  el('pick-all').onchange = () => {
    const all = picks();
    for (const pick of all) pick.checked = el('pick-all').checked;
    select(all);
  };
  addEventListener('pageshow', () => select(picks())); // the browser restores the marks of a page that it has left
}

// ---- Menus ----

/** Closes the open menus, except the one that has the element. @param {EventTarget | null} target */
function closeMenus(target) {
  for (const menu of document.querySelectorAll('.menu[open]')) {
    if (!(target instanceof Node && menu.contains(target))) menu.removeAttribute('open');
  }
}

addEventListener('click', ({ target }) => closeMenus(target));
addEventListener('keydown', ({ key }) => {
  const open = document.activeElement?.closest('.menu[open]');
  if (key !== 'Escape' || !open) return;
  closeMenus(null);
  open.querySelector('summary')?.focus();
});

// ---- Polling ----

const POLL_MS = 4000;
const TIMEOUT_MS = 10000;
let timer = 0;
let polling = false;

async function poll() {
  clearTimeout(timer);
  if (polling || liveState === 'paused' || document.hidden) return;
  polling = true;
  let message = 'The console does not answer. Reload to see why, or to sign in again.';
  /** @type {Document | null} */
  let page = null;
  try {
    const answer = await fetch(address, { signal: AbortSignal.timeout(TIMEOUT_MS) });
    const got = new DOMParser().parseFromString(await answer.text(), 'text/html');
    if (answer.ok && got.getElementById('live')) page = got;
    message = got.querySelector('#problem [role=alert]')?.textContent ?? message;
  } catch { /* message has the reason */ }
  polling = false;
  timer = setTimeout(poll, POLL_MS);
  if (liveState === 'paused') return;
  if (page) show(page);
  else setNoAnswer(message);
}

/** Polls at once when the page becomes visible: what it shows may be old. */
function resume() {
  if (liveState !== 'paused') setStatus('connecting', 'connecting…');
  poll();
}

function pause() {
  setStatus(liveState === 'paused' ? 'connecting' : 'paused', liveState === 'paused' ? 'connecting…' : 'paused');
  el('pause').setAttribute('aria-pressed', String(liveState === 'paused'));
  poll();
}

if (!el('clear') && matchMedia('(max-width: 40rem)').matches) el('filters')?.removeAttribute('open');
localTimes(document);
if (address && el('live')) {
  el('pause').hidden = false;
  el('pause').onclick = pause;
  addEventListener('pageshow', ({ persisted }) => { if (persisted) resume(); });
  document.addEventListener('visibilitychange', resume);
  setTime(document);
  showSelection();
  setInterval(() => { if (liveState === 'live') count(document); }, 1000);
  timer = setTimeout(poll, liveState === 'live' && !document.hidden ? POLL_MS : 0);
}
