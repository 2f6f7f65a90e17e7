// Figures come by server-sent events and are written as text. Lists never move under the
// cursor. While the page is hidden nothing is asked for.
const events = document.body.dataset.events;
const reload = Number(document.body.dataset.reload || 0);

// On a narrow screen the menu scrolls: it shows where the reader is.
const menu = document.querySelector('.menu');
const here = menu?.querySelector('[aria-current]');
if (here) menu.scrollLeft = here.offsetLeft - (menu.clientWidth - here.offsetWidth) / 2;

function write(figures) {
  for (const element of document.querySelectorAll('[data-live]')) {
    const value = figures[element.dataset.live];
    if (typeof value === 'string' && element.textContent !== value) element.textContent = value;
  }
  for (const path of document.querySelectorAll('[data-path]')) {
    const d = figures.paths[path.dataset.path];
    if (typeof d === 'string') path.setAttribute('d', d);
  }
  for (const top of document.querySelectorAll('[data-top]')) {
    const value = figures.tops[top.dataset.top];
    if (typeof value === 'string') top.textContent = value;
  }
  const verdict = document.querySelector('[data-level]');
  if (verdict) verdict.className = 'verdict ' + figures.level;
  const cells = document.querySelectorAll('.strip rect');
  if (cells.length === figures.lanes.length) {
    cells.forEach((cell, i) => cell.setAttribute('class', figures.lanes[i]));
  }
  for (const badge of document.querySelectorAll('.badge, dd[data-live="dead"], dd[data-live="blocked"]')) {
    badge.classList.toggle('hot', badge.textContent !== '0' && badge.textContent !== '–');
  }
}

let source;
function open() {
  if (!events || source || document.hidden) return;
  source = new EventSource(events);
  source.addEventListener('figures', (event) => {
    document.documentElement.classList.add('live');
    write(JSON.parse(event.data));
  });
  source.onerror = () => document.documentElement.classList.remove('live');
}
function close() {
  source?.close();
  source = undefined;
}
document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
addEventListener('pagehide', close);
addEventListener('pageshow', open);

// A page whose list changes is loaded again, unless somebody is typing, choosing or reading on.
function busy() {
  const active = document.activeElement;
  return document.hidden || (active && active.matches('input, select, textarea, summary')) ||
    document.querySelector('input:checked, details[open]') || !getSelection().isCollapsed;
}
if (reload > 0) setInterval(() => { if (!busy()) location.reload(); }, reload * 1000);

for (const button of document.querySelectorAll('[data-copy]')) {
  if (!navigator.clipboard) break;
  button.hidden = false;
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector('code, pre').textContent.trim());
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
}

addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.activeElement?.matches('input, textarea, select')) return;
  const find = document.getElementById('q');
  if (find) {
    event.preventDefault();
    find.focus();
  }
});
open();
