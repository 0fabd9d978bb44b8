// The official JavaScript clients of both protocol owners against a running server: npm `openai` and `@anthropic-ai/sdk`.
// usage: node server_clients.mjs PATH/deepinfer PATH/node_modules MODEL
// Chat, streams, tools, responses, messages, errors, time limits and an abort in mid-stream; SIGTERM must end the server with 0.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';

const [program, modules, directory] = process.argv.slice(2);
const require = createRequire(modules + '/');
const { OpenAI } = require('openai');
const { Anthropic } = require('@anthropic-ai/sdk');

const environment = Object.fromEntries(Object.entries(process.env).filter(([k]) => !k.startsWith('DEEPINFER_')));
const server = spawn(program, ['serve', '--listen', '127.0.0.1:0', '--model', directory, '--api-key', 'secret', '--log-level', 'warning', '--drain-grace-s', '5'],
  { stdio: ['ignore', 'pipe', 'inherit'], env: environment });
const ended = new Promise((resolve) => server.on('exit', resolve));
const base = await new Promise((resolve, reject) => {
  let text = '';
  server.stdout.on('data', (d) => { text += d; const m = text.match(/http:\S+/); if (m) resolve(m[0]); });
  server.on('exit', () => reject(new Error('no address: ' + text)));
});
const ask = [{ role: 'user', content: 'The code of the red door is 4711. What is the code of the red door?' }];
const off = { thinking: { type: 'disabled' } };

async function chat(client, model) {
  const request = { model, messages: ask, max_tokens: 24, temperature: 0, seed: 1, ...off };
  const whole = await client.chat.completions.create(request);
  let text = '', usage = null;
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  const helper = client.chat.completions.stream(request);  // the library's own accumulation
  assert.equal((await helper.finalChatCompletion()).choices[0].message.content, text);
  const tools = [{ type: 'function', function: { name: 'now', parameters: { type: 'object', properties: {} } } }];
  const called = await client.chat.completions.create({ ...request, tools });
  assert.ok(['stop', 'length', 'tool_calls'].includes(called.choices[0].finish_reason));
}

// A strict tool and a required call, whole and streamed.
async function strictTools(client, other, model) {
  const schema = { type: 'object', properties: { unit: { enum: ['C', 'F'] }, days: { type: 'integer', minimum: 1, maximum: 14 } },
    required: ['unit', 'days'], additionalProperties: false };
  const weather = (v) => {
    const value = typeof v === 'string' ? JSON.parse(v) : v;
    assert.deepEqual(Object.keys(value).sort(), ['days', 'unit']);
    assert.ok(['C', 'F'].includes(value.unit) && Number.isInteger(value.days) && value.days >= 1 && value.days <= 14, JSON.stringify(value));
    return value;
  };
  const request = { model, messages: ask, max_tokens: 200, temperature: 1, seed: 3, parallel_tool_calls: false, tool_choice: 'required',
    tools: [{ type: 'function', function: { name: 'get_weather', strict: true, parameters: schema } }], ...off };
  const whole = (await client.chat.completions.create(request)).choices[0];
  assert.equal(whole.finish_reason, 'tool_calls');
  const streamed = (await client.chat.completions.stream(request).finalChatCompletion()).choices[0];
  assert.deepEqual(weather(streamed.message.tool_calls[0].function.arguments), weather(whole.message.tool_calls[0].function.arguments));
  const made = await client.responses.create({ model, input: ask, max_output_tokens: 200, reasoning: { effort: 'none' }, tool_choice: 'required',
    parallel_tool_calls: false, tools: [{ type: 'function', name: 'get_weather', strict: true, parameters: schema }] });
  weather(made.output.filter((item) => item.type === 'function_call')[0].arguments);
  const any = { model, max_tokens: 200, messages: ask, tool_choice: { type: 'any', disable_parallel_tool_use: true },
    tools: [{ name: 'get_weather', strict: true, input_schema: schema }], ...off };
  assert.equal((await other.messages.create(any)).stop_reason, 'tool_use');
  weather((await other.messages.stream(any).finalMessage()).content.filter((b) => b.type === 'tool_use')[0].input);
}

async function responses(client, model) {
  const first = await client.responses.create({ model, input: 'My name is Ada.', max_output_tokens: 12, reasoning: { effort: 'none' } });
  const second = await client.responses.create({ model, input: 'And?', max_output_tokens: 12, previous_response_id: first.id, reasoning: { effort: 'none' } });
  assert.ok(second.usage.input_tokens > first.usage.input_tokens);
  const kinds = [];
  for await (const event of await client.responses.create({ model, input: 'Hello', max_output_tokens: 12, stream: true })) kinds.push(event.type);
  assert.equal(kinds[0], 'response.created');
  assert.ok(['response.completed', 'response.incomplete'].includes(kinds.at(-1)), kinds.at(-1));
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
}

async function messages(client, model) {
  const request = { model, max_tokens: 16, messages: ask, temperature: 0, ...off };
  const whole = await client.messages.create(request);
  const final = await client.messages.stream(request).finalMessage();
  assert.equal(final.content[0].text, whole.content[0].text);
  const counted = await client.messages.countTokens({ model, messages: ask, ...off });
  assert.equal(counted.input_tokens, whole.usage.input_tokens + whole.usage.cache_read_input_tokens);
}

async function errors(client, model) {
  await assert.rejects(client.withOptions({ apiKey: 'wrong' }).models.list(), OpenAI.AuthenticationError);
  await assert.rejects(client.chat.completions.create({ model: 'nobody', messages: ask }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ model, messages: ask, temperature: 7 }), OpenAI.BadRequestError);
  await assert.rejects(new Anthropic({ baseURL: base, apiKey: 'wrong', maxRetries: 0 }).messages.create({ model, max_tokens: 4, messages: ask }), Anthropic.AuthenticationError);
  const stream = await client.chat.completions.create({ model, messages: ask, max_tokens: 400, stream: true, ignore_eos: true, ...off });
  for await (const chunk of stream) { assert.ok(chunk.id); break; }
  stream.controller.abort();
  for (let i = 0; ; ++i) {
    if ((await (await fetch(base + '/progress')).json()).running === 0) break;
    assert.ok(i < 200, 'the aborted request is still running');
    await new Promise((r) => setTimeout(r, 50));
  }
}

try {
  const client = new OpenAI({ baseURL: base + '/v1', apiKey: 'secret', maxRetries: 0, timeout: 120000 });
  const model = (await client.models.list()).data[0].id;
  await chat(client, model);
  await responses(client, model);
  await strictTools(client, new Anthropic({ baseURL: base, apiKey: 'secret', maxRetries: 0, timeout: 120000 }), model);
  await messages(new Anthropic({ baseURL: base, apiKey: 'secret', maxRetries: 0, timeout: 120000 }), model);
  await errors(client, model);
  server.kill('SIGTERM');
  assert.equal(await ended, 0);
  console.log('the JavaScript clients of both protocol owners were served');
} finally {
  server.kill('SIGKILL');
}
