// Usage: node official_client.mjs BASE_URL PROMPT... : asks in all four ways and prints what the SDK put together.
import OpenAI from "openai";

const [baseURL, ...prompts] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "key", maxRetries: 0 });
const weather = { name: "get_weather", parameters: { type: "object", properties: {} } };
const ours = { type: "code_interpreter", container: { type: "auto" } };
const results = {};

for (const input of prompts) {
  const asked = {
    model: "scripted",
    input,
    tools: [ours, { type: "function", ...weather }],
    include: ["code_interpreter_call.outputs"],
    metadata: { session_id: "s" },
  };
  const stream = client.responses.stream(asked);
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  const streamed = await stream.finalResponse();
  const whole = await client.responses.create(asked);

  const chat = {
    model: "scripted",
    messages: [{ role: "user", content: input }],
    tools: [ours, { type: "function", function: weather }],
  };
  const runner = client.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
  const chatStreamed = await runner.finalChatCompletion();
  const chatWhole = await client.chat.completions.create(chat);
  results[input] = { kinds, streamed, whole, chatStreamed, chatWhole };
}
console.log(JSON.stringify(results));
