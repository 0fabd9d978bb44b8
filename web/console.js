// The console: chat over the public API with streaming, thinking folded, tool calls, stop; tabs, theme and inspector.
'use strict';

const messages = [];      // the conversation as the API takes it
let running = null;       // AbortController of the answer on its way
let model = '';
let last = null;          // times of the last answer

function headers() {
  const h = { 'content-type': 'application/json' };
  if ($('key').value) h.authorization = 'Bearer ' + $('key').value;
  return h;
}

function bubble(role) {
  const turn = make('div', 'turn ' + role);
  $('log').append(turn);
  return turn;
}

function atEnd() {
  const log = $('log');
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function body(stream) {
  const all = [];
  if ($('system').value.trim()) all.push({ role: 'system', content: $('system').value });
  const b = {
    model, stream, messages: all.concat(messages),
    thinking: { type: $('thinking').value },
    temperature: Number($('temperature').value), top_p: Number($('top_p').value), top_k: Number($('top_k').value),
    min_p: Number($('min_p').value), max_tokens: Number($('max_tokens').value),
  };
  if (stream) b.stream_options = { include_usage: true, continuous_usage_stats: true };
  if ($('effort').value && $('thinking').value === 'enabled') b.reasoning_effort = $('effort').value;
  if ($('seed').value !== '') b.seed = Number($('seed').value);
  if ($('stop_text').value) b.stop = [$('stop_text').value];
  if ($('tools').value.trim()) b.tools = JSON.parse($('tools').value);
  if ($('schema').value.trim())
    b.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema: JSON.parse($('schema').value) } };
  return b;
}

// Yields the data of each event of an SSE answer.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      for (const line of text.slice(0, end).split('\n')) if (line.startsWith('data: ')) yield line.slice(6);
    }
  }
}

class Answer {
  constructor() {
    this.turn = bubble('assistant');
    this.content = ''; this.reasoning = ''; this.calls = [];
    this.begin = performance.now(); this.first = 0; this.reason = ''; this.usage = null;
    this.text = make('div', 'text'); this.meta = make('div', 'meta', 'waiting…');
    this.turn.append(this.text, this.meta);
  }
  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.id) this.id = chunk.id;
    const choice = chunk.choices && chunk.choices[0];
    if (!choice) return;
    const d = choice.delta, follow = atEnd();
    if (!this.first && (d.content || d.reasoning_content || d.tool_calls)) this.first = performance.now();
    if (d.reasoning_content) {
      if (!this.thought) {
        this.thought = make('details');
        this.thought.append(make('summary', '', 'Thinking'), make('div', 'text'));
        this.turn.prepend(this.thought);
      }
      this.reasoning += d.reasoning_content;
      this.thought.lastChild.textContent = this.reasoning;
      this.thought.firstChild.textContent = `Thinking (${this.reasoning.length} characters)`;
    }
    if (d.content) { this.content += d.content; this.text.textContent = this.content; }
    for (const c of d.tool_calls || []) {
      const call = this.calls[c.index] ??= { id: c.id, name: c.function.name, arguments: '', box: this.turn.insertBefore(make('div', 'call'), this.meta) };
      call.arguments += c.function.arguments || '';
      call.box.textContent = `${call.name}(${call.arguments})`;
    }
    if (choice.finish_reason) this.reason = choice.finish_reason;
    this.show();
    if (follow) $('log').scrollTop = $('log').scrollHeight;
  }
  show() {
    const now = performance.now(), parts = [];
    if (this.first) parts.push(`first token ${Math.round(this.first - this.begin)} ms`);
    const n = this.usage ? this.usage.completion_tokens : 0;
    if (this.first && n > 1) parts.push(`${(1000 * n / Math.max(1, now - this.first)).toFixed(1)} tokens/s`);
    if (this.usage) parts.push(`${this.usage.prompt_tokens} + ${this.usage.completion_tokens} tokens, ${this.usage.prompt_cache_hit_tokens || 0} from cache`);
    if (this.reason) parts.push(this.reason);
    this.meta.textContent = parts.join(' · ') || 'waiting…';
    $('readout').textContent = this.reason ? '' : this.meta.textContent;
  }
  close(note) {
    if (note) this.reason = note;
    this.show();
    $('readout').textContent = '';
    const m = { role: 'assistant', content: this.content };
    if (this.reasoning) m.reasoning_content = this.reasoning;
    if (this.calls.length) m.tool_calls = this.calls.map((c) => ({ id: c.id, type: 'function', function: { name: c.name, arguments: c.arguments } }));
    if (this.content || this.calls.length || this.reasoning) messages.push(m);
    last = { id: this.id, usage: this.usage };
    if (this.calls.length && !note) this.askResults();
  }
  // A field for each call's result; when all are given the conversation goes on.
  askResults() {
    for (const call of this.calls) {
      const row = make('div', 'row'), field = make('input'), give = make('button', '', 'Give result');
      field.setAttribute('aria-label', 'Result of ' + call.name);
      give.type = 'button';
      give.onclick = () => {
        call.result = field.value;
        row.remove();
        if (this.calls.every((c) => c.result !== undefined)) {
          for (const c of this.calls) messages.push({ role: 'tool', tool_call_id: c.id, content: c.result });
          send();
        }
      };
      row.append(field, give);
      call.box.append(row);
    }
  }
}

function problem(text) {
  bubble('error').append(make('div', 'text', text));
  $('log').scrollTop = $('log').scrollHeight;
}

async function send() {
  if (running) return;
  let request;
  try { request = body(true); } catch (e) { return problem('The tools or the schema are not JSON: ' + e.message); }
  running = new AbortController();
  $('send').disabled = true; $('stop').disabled = false;
  let answer = null;
  try {
    const response = await fetch('v1/chat/completions', { method: 'POST', headers: headers(), body: JSON.stringify(request), signal: running.signal });
    if (!response.ok) {
      const e = await response.json().catch(() => null);
      return problem(e && e.error ? `${response.status}: ${e.error.message}` : `The server answered ${response.status}.`);
    }
    answer = new Answer();
    for await (const data of events(response)) {
      if (data === '[DONE]') break;
      const chunk = JSON.parse(data);
      if (chunk.error) { problem(chunk.error.message); break; }
      answer.take(chunk);
    }
    answer.close();
  } catch (e) {
    if (e.name === 'AbortError') { if (answer) answer.close('stopped'); } else { if (answer) answer.close('broken'); problem(e.message); }
  } finally {
    running = null;
    $('send').disabled = false; $('stop').disabled = true;
    $('text').focus();
  }
}

$('ask').onsubmit = (e) => {
  e.preventDefault();
  const text = $('text').value;
  if (!text.trim() || running) return;
  $('text').value = '';
  messages.push({ role: 'user', content: text });
  bubble('user').append(make('div', 'text', text));
  $('log').scrollTop = $('log').scrollHeight;
  send();
};
$('text').onkeydown = (e) => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); $('ask').requestSubmit(); }
};
$('stop').onclick = () => running && running.abort();
$('clear').onclick = () => { if (running) running.abort(); messages.length = 0; $('log').replaceChildren(); $('text').focus(); };

for (const tab of document.querySelectorAll('[role=tab]')) {
  tab.onclick = () => {
    for (const other of document.querySelectorAll('[role=tab]')) {
      other.setAttribute('aria-selected', String(other === tab));
      $(other.getAttribute('aria-controls')).hidden = other !== tab;
    }
    poll();
    if (tab.id === 'tab-inspect') recent().catch(() => {});
  };
  // Arrow keys walk the tabs.
  tab.onkeydown = (e) => {
    const all = [...document.querySelectorAll('[role=tab]')], step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const next = all[(all.indexOf(tab) + step + all.length) % all.length];
    next.focus();
    next.click();
  };
}

function theme(name) { if (name) document.documentElement.dataset.theme = name; }
try { theme(localStorage.getItem('theme')); } catch { /* storage may be off */ }
$('theme').onclick = () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  theme(dark ? 'light' : 'dark');
  try { localStorage.setItem('theme', document.documentElement.dataset.theme); } catch { /* storage may be off */ }
};

$('render').onclick = async () => {
  const box = $('spans');
  let request;
  try { request = body(false); } catch (e) { box.textContent = e.message; return; }
  if (!messages.length) request.messages.push({ role: 'user', content: $('text').value || 'Hello' });
  const response = await fetch('render', { method: 'POST', headers: headers(), body: JSON.stringify(request) });
  const answer = await response.json();
  if (!response.ok) { box.textContent = answer.error.message; return; }
  $('tokens').textContent = `${answer.prompt_tokens} tokens in ${answer.spans.length} spans`;
  let left = last && last.usage ? last.usage.prompt_cache_hit_tokens || 0 : 0;
  box.replaceChildren(...answer.spans.map((s) => {
    const e = make('span', s.kind === 'control' ? 'control' : s.origin, s.text);
    e.title = `${s.origin}, ${s.tokens} token${s.tokens === 1 ? '' : 's'}`;
    if (left >= s.tokens) e.classList.add('cached');
    left -= s.tokens;
    return e;
  }));
  recent();
};

// Where the server's time went: the last answer's bar and the table of recent requests.
async function recent() {
  const r = await fetch('console/requests', { headers: headers() });
  if (!r.ok) return;
  const list = (await r.json()).requests;
  const mine = last && list.find((one) => one.id === last.id);
  if (mine) timeLine($('timeline'), ['queue', 'prefill', 'decode'].map((part) => [part, mine[part + '_ms']]));
  showRecent($('recent'), list);
}

async function poll() {
  try {
    const r = await fetch('console/state', { headers: headers() });
    if (!r.ok) throw new Error(String(r.status));
    show(await r.json());
  } catch {
    $('health').textContent = 'no answer';
    $('health').className = 'pill bad';
  }
}

async function learnModel() {
  try {
    const list = await (await fetch('v1/models', { headers: headers() })).json();
    if (list.data) { model = list.data[0].id; $('model').textContent = model; }
  } catch { /* poll shows that nobody answers */ }
  poll();
}
$('key').onchange = learnModel;
learnModel();
setInterval(poll, 1000);
