// Drives the console in a real browser: one JSON object comes by stdin, one line of JSON goes to
// stdout for each thing that was done. TestConsoleInBrowser decides what is right.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

const require = createRequire(process.env.MODULES + '/');
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const job = JSON.parse(readFileSync(0, 'utf8'));
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const patience = 60_000;
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');

// open makes a tab that collects what goes wrong in it.
async function open(look) {
  const context = await browser.newContext({
    colorScheme: look.theme, viewport: { width: look.width, height: look.height ?? 900 }, javaScriptEnabled: look.script ?? true,
    deviceScaleFactor: look.scale ?? 1, reducedMotion: 'reduce', ignoreHTTPSErrors: true, extraHTTPHeaders: look.headers ?? {},
  });
  const page = await context.newPage();
  page.setDefaultTimeout(patience);
  const wrong = [];
  page.on('pageerror', (e) => wrong.push('error: ' + e.message));
  page.on('console', (m) => { if (m.type() === 'error') wrong.push('console: ' + m.text()); });
  page.on('dialog', (d) => { wrong.push('dialog: ' + d.message()); d.dismiss(); });
  return { context, page, wrong };
}

async function findings(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
  return found.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical')
    .map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.target.join(' ')).join(', ')}`);
}

// seen opens a page and returns what the test judges.
async function seen(page, look, path, wrong) {
  wrong.length = 0;
  const answer = await page.goto(job.root + path, { waitUntil: 'load' });
  const under = await page.evaluate(() => [...document.querySelectorAll('.data.stack td[data-h]')].filter((td) => {
    const label = getComputedStyle(td, '::before');
    return td.offsetHeight > 0 && label.position === 'absolute' && label.content !== 'none' && parseFloat(getComputedStyle(td).paddingLeft) < parseFloat(label.width);
  }).map((td) => `the label ${td.dataset.h} lies over ${td.textContent.trim()}`));
  wrong.push(...new Set(under));
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  const violations = look.axe ? await findings(page) : [];
  const marked = await page.evaluate(() => document.querySelectorAll('main script, main img, main iframe, main style').length);
  return { path, status: answer.status(), wide, wrong: [...wrong], axe: violations, marked, theme: look.theme, width: look.width };
}

for (const look of job.looks ?? []) {
  const { context, page, wrong } = await open(look);
  for (const path of look.pages) {
    let line;
    for (let tries = 1; !line; tries++) {
      try {
        line = await seen(page, look, path, wrong);
      } catch (e) { // the page loaded itself again, as it does every few seconds
        if (tries === 3 || !/context was destroyed|interrupted by another navigation|ERR_ABORTED/.test(e.message)) throw e;
      }
    }
    if (look.save) {
      await page.screenshot({ path: `${look.save}/${path.replace(/[^a-z0-9]+/gi, '-') || 'overview'}-${look.theme}-${look.width}.png`, fullPage: look.full ?? false });
    }
    say(line);
  }
  await context.close();
}

// An act: steps are pages to open, things to click, texts to fill in.
for (const script of job.scripts ?? [true]) {
  const { context, page, wrong } = await open({ theme: 'light', width: 1280, script });
  for (const act of (script ? job.acts : job.plain) ?? []) {
    wrong.length = 0;
    const line = { act: act.name, script, error: '', text: '', wrong: [] };
    try {
      for (const step of act.steps) {
        if ('open' in step) await page.goto(job.root + step.open);
        if ('check' in step) await page.locator(step.check).first().check();
        if ('fill' in step) await page.locator(step.fill).first().fill(step.with);
        if ('click' in step) await page.locator(step.click).first().click();
        if ('press' in step) await page.keyboard.press(step.press);
        if ('type' in step) await page.keyboard.type(step.type);
        if ('see' in step) await page.locator(step.see).first().waitFor();
        if ('changes' in step) {
          const before = await page.locator(step.changes).first().textContent();
          await page.waitForFunction(([selector, old]) => document.querySelector(selector).textContent !== old, [step.changes, before]);
        }
      }
    } catch (e) {
      line.error = e.message;
    }
    line.text = (await page.locator('main').innerText().catch(() => '')).slice(0, 2000);
    line.wrong = [...wrong];
    say(line);
  }
  await context.close();
}
await browser.close();
