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
  const most = Math.max(1e-9, ...series.flatMap((s) => s.values)) * 1.1;
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

// The live view: asks once a second, keeps two minutes.
const past = { rate: [], running: [], waiting: [], cache: [], forward: [], draft: [], sample: [], schedule: [] };
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
    keep('cache', g.blocks_total ? 100 * g.blocks_used / g.blocks_total : 0);
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
    tile('answers', short(c.finished)), tile('cancelled', short(c.cancelled)), tile('preemptions', short(c.preemptions)));
  draw($('c-rate'), [{ name: 'output', values: past.rate }]);
  draw($('c-load'), [{ name: 'running', values: past.running }, { name: 'waiting', values: past.waiting }]);
  draw($('c-cache'), [{ name: 'used', values: past.cache }]);
  draw($('c-step'), ['forward', 'draft', 'sample', 'schedule'].map((name) => ({ name, values: past[name] })));
}
