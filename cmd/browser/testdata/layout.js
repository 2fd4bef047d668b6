// What the tests of the console's looks ask a page. Code, which scrolls, texts that end in an ellipsis, and texts
// for screen readers, which are a pixel wide, may be cut off.
const shown = (except) =>
  [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest(except));

const mayBeCut = (e) => {
  for (; e; e = e.parentElement) {
    if (e.clientWidth === 1 || getComputedStyle(e).textOverflow === 'ellipsis') return true;
  }
  return false;
};

/** The elements that are partly outside the window. */
globalThis.beyond = () => shown('pre, .away, .skip, svg')
  .filter((e) => e.getClientRects().length && !mayBeCut(e))
  .map((e) => [e, e.getBoundingClientRect()])
  .filter(([, at]) => at.right > innerWidth + 0.5 || at.left < -0.5)
  .map(([e, at]) => [e.tagName, e.id || e.className, Math.round(at.left), Math.round(at.right)]).slice(0, 5);

/** The elements whose text is cut off. */
globalThis.cropped = () => shown('pre, .away, .skip, svg, input')
  .filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1)
  .filter((e) => getComputedStyle(e).overflowX !== 'visible' && getComputedStyle(e).textOverflow !== 'ellipsis')
  .map((e) => [e.tagName, e.id || e.className, e.scrollWidth, e.clientWidth]).slice(0, 5);

/** Whether the end of each whole message is visible. */
globalThis.scrolled = () => [...document.querySelectorAll('.trace')].filter((e) => e.checkVisibility())
  .every((e) => e.lastElementChild.getBoundingClientRect().bottom <= e.getBoundingClientRect().bottom);

/** Whether the page is loaded, and answered if it polls. */
globalThis.settled = () => document.getElementById('main') && document.fonts.status === 'loaded' &&
  (!document.body.dataset.poll || document.getElementById('live')?.dataset.live !== 'connecting');
