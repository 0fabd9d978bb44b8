// Small helpers of the console and its live view: elements, charts, numbers. No framework, no other host.
'use strict';

const $ = (id) => document.getElementById(id);

function make(tag, name, text) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text !== undefined) e.textContent = text;
  return e;
}

function short(n) {
  if (!isFinite(n)) return '–';
  if (Math.abs(n) >= 1e9) return (n / 1e9).toFixed(1) + 'G';
  if (Math.abs(n) >= 1e6) return (n / 1e6).toFixed(1) + 'M';
  if (Math.abs(n) >= 1e4) return (n / 1e3).toFixed(1) + 'k';
  return Number.isInteger(n) ? String(n) : n.toFixed(n < 10 ? 2 : 1);
}

function milliseconds(s) {
  return s >= 1 ? s.toFixed(2) + ' s' : (s * 1000).toFixed(s < 0.01 ? 1 : 0) + ' ms';
}

// Lines over time in an SVG: series is [{name, values}], newest value last.
function draw(svg, series) {
  const w = svg.clientWidth || 400, h = svg.clientHeight || 128, left = 34, bottom = 14, ns = 'http://www.w3.org/2000/svg';
  svg.setAttribute('viewBox', `0 0 ${w} ${h}`);
  const most = Math.max(1, ...series.flatMap((s) => s.values)) * 1.1;  // noise below one is flat
  const children = [];
  const add = (tag, attributes, text) => {
    const e = document.createElementNS(ns, tag);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    if (text !== undefined) e.textContent = text;
    children.push(e);
  };
  for (const share of [0, 0.5, 1]) {
    const y = (h - bottom) * (1 - share) + (share === 1 ? 8 : 0);
    add('line', { x1: left, x2: w, y1: y, y2: y, class: 'grid-line' });
    add('text', { x: 0, y: Math.max(9, y) }, short(most * share));
  }
  series.forEach((s, k) => {
    const n = Math.max(2, s.values.length);
    const path = s.values.map((v, i) => {
      const x = left + (w - left) * (i + 120 - n) / 119, y = (h - bottom) * (1 - v / most);
      return `${i ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    }).join('');
    add('path', { d: path, class: `s${k + 1}` });
    add('text', { x: left + 4 + k * 90, y: h - 2, class: `key-s${k + 1}` }, `■ ${s.name}`);
  });
  svg.replaceChildren(...children);
}

// Queue, prefill and decode of one request as parts of a bar; `ms` of each.
function timeLine(box, parts) {
  const total = parts.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  box.replaceChildren(...parts.map(([name, ms]) => {
    const text = `${name} ${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`, e = make('div', name, 100 * ms / total > 12 ? text : '');
    e.style.width = `${100 * ms / total}%`;
    e.title = text;
    return e;
  }));
  box.setAttribute('aria-label', 'Time line of the last answer: ' + parts.map(([name, ms]) => `${name} ${ms.toFixed(1)} ms`).join(', '));
}

// The last requests with their times, newest first; a row's bar is drawn to the scale of the longest.
function showRecent(table, requests) {
  const head = make('tr');
  for (const name of ['request', 'how it ended', 'prompt (cached)', 'output', 'drafts', 'queue', 'prefill', 'decode', '']) head.append(make('th', '', name));
  const longest = Math.max(1, ...requests.map((r) => r.queue_ms + r.prefill_ms + r.decode_ms));
  table.replaceChildren(head, ...requests.slice(0, 20).map((r) => {
    const row = make('tr'), bar = make('div', 'bar');
    for (const part of ['queue', 'prefill', 'decode']) {
      const e = make('div', part);
      e.style.width = `${100 * r[part + '_ms'] / longest}%`;
      bar.append(e);
    }
    const cell = (text) => row.append(make('td', '', text));
    cell(r.id.slice(0, 18)); cell(r.reason); cell(`${r.prompt_tokens} (${r.cached_tokens})`); cell(String(r.output_tokens));
    cell(r.drafted_tokens ? `${r.accepted_tokens} of ${r.drafted_tokens}` : '–');
    for (const part of ['queue', 'prefill', 'decode']) cell(milliseconds(r[part + '_ms'] / 1000));
    const last = make('td');
    last.append(bar);
    row.append(last);
    return row;
  }));
}

// The live view: asks once a second, keeps two minutes.
const past = { rate: [], first: [], between: [], running: [], waiting: [], blocks: [], windows: [], hits: [], accepted: [], forward: [], draft: [], sample: [], schedule: [] };
let before = null;

function keep(name, value) {
  past[name].push(Number.isFinite(value) ? value : 0);
  if (past[name].length > 120) past[name].shift();
}

function tile(label, value) {
  const t = make('div', 'tile');
  t.append(make('b', '', value), make('span', 'dim', label));
  return t;
}

// The persistent store, where there is one: where prompts came from, what it holds, and whether asking it pays.
function storeTiles(c, g) {
  if (g.store_objects === undefined) return [];
  const part = (n) => short(c.prompt_tokens ? 100 * n / c.prompt_tokens : 0) + ' %';
  const speed = c.store_fetch_ns ? 1e3 * c.store_fetched_bytes / c.store_fetch_ns : 0;
  return [
    tile('prompt tokens from memory', part(c.cached_tokens - c.store_tokens)), tile('prompt tokens from the store', part(c.store_tokens)),
    tile('prompt tokens computed', part(c.prompt_tokens - c.cached_tokens)),
    tile('blocks and windows in the store', short(g.store_objects)), tile('bytes in the store', short(g.store_held_bytes)),
    tile('bytes read from the store', short(c.store_fetched_bytes)), tile('store reads, MB per second', short(speed)),
    tile('restored', short(c.store_loads)), tile('restored in part', short(c.store_short_loads)),
    tile('computed although stored', short(c.store_declined)), tile('reading is quicker than computing', g.store_pays ? 'yes' : 'no'),
    tile('store can be written', g.store_writable ? 'yes' : 'no')];
}

function show(state) {
  const c = state.counters, g = state.gauges;
  const health = $('health');
  health.textContent = state.draining ? 'draining' : state.progress;
  health.className = 'pill ' + (state.status === 'ok' ? 'good' : 'bad');
  if (before && state.time_ns > before.time_ns) {
    const seconds = (state.time_ns - before.time_ns) / 1e9, p = before.counters;
    const steps = Math.max(1, c.steps - p.steps);
    keep('rate', (c.output_tokens - p.output_tokens) / seconds);
    keep('running', g.running);
    keep('waiting', g.waiting);
    // A second without a sample has no latency: the line stays where it was.
    for (const [name, part] of [['first', 'ttft_s'], ['between', 'inter_token_s']]) {
      const n = state[part].count - before[part].count;
      keep(name, n > 0 ? 1000 * (state[part].sum - before[part].sum) / n : past[name].at(-1));
    }
    const share = (now, whole) => { const n = c[whole] - p[whole]; return n > 0 ? 100 * (c[now] - p[now]) / n : 0; };
    keep('blocks', g.blocks_total ? 100 * g.blocks_used / g.blocks_total : 0);
    keep('windows', g.snapshots_total ? 100 * g.snapshots_used / g.snapshots_total : 0);
    keep('hits', share('cached_tokens', 'prompt_tokens'));
    keep('accepted', share('accepted_tokens', 'verified_tokens'));
    for (const part of ['forward', 'draft', 'sample', 'schedule']) keep(part, (c[part + '_ns'] - p[part + '_ns']) / steps / 1e6);
  }
  before = state;
  if ($('live').hidden) return;
  const hit = c.prompt_tokens ? 100 * c.cached_tokens / c.prompt_tokens : 0;
  const accepted = c.verified_tokens ? 100 * c.accepted_tokens / c.verified_tokens : 0;
  const last = (name) => past[name].at(-1) ?? 0;
  $('tiles').replaceChildren(
    tile('running', short(g.running)), tile('waiting', short(g.waiting)), tile('tokens per second', short(last('rate'))),
    tile('blocks used of ' + short(g.blocks_total), short(g.blocks_used)), tile('blocks kept for reuse', short(g.blocks_cached)),
    tile('stored windows of ' + short(g.snapshots_total), short(g.snapshots_used)),
    tile('prompt tokens from cache', short(hit) + ' %'), tile('drafts accepted', short(accepted) + ' %'),
    tile('first token, p50', milliseconds(state.ttft_s.p50)), tile('first token, p99', milliseconds(state.ttft_s.p99)),
    tile('between tokens, p50', milliseconds(state.inter_token_s.p50)), tile('between tokens, p99', milliseconds(state.inter_token_s.p99)),
    tile('answers', short(c.finished)), tile('cancelled', short(c.cancelled)), tile('preemptions', short(c.preemptions)),
    ...storeTiles(c, g));
  draw($('c-rate'), [{ name: 'output', values: past.rate }]);
  draw($('c-load'), [{ name: 'running', values: past.running }, { name: 'waiting', values: past.waiting }]);
  draw($('c-latency'), [{ name: 'first token', values: past.first }, { name: 'between tokens', values: past.between }]);
  draw($('c-cache'), ['blocks', 'windows', 'hits'].map((name) => ({ name, values: past[name] })));
  draw($('c-drafts'), [{ name: 'accepted', values: past.accepted }]);
  draw($('c-step'), ['forward', 'draft', 'sample', 'schedule'].map((name) => ({ name, values: past[name] })));
}
