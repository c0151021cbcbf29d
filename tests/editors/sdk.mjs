// Drives `agentctl acp` with a client of the official SDK, and validates every message of agentctl by the official
// schema of the protocol. Prints one line for each step; the exit status is 1 at the first fault.
//
//   node sdk.mjs MODULES DIRECTORY COMMAND [ARGUMENT...]
//
// MODULES is a node_modules directory with @agentclientprotocol/sdk and ajv. The command must have the scripted agent
// of these tests.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { Readable, Transform, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [modules, cwd, ...command] = process.argv.slice(2);
const sdk = join(modules, "@agentclientprotocol/sdk");
const acp = await import(pathToFileURL(join(sdk, "dist/v1/stable/acp.js")).href);
const Ajv = createRequire(join(modules, "x.js"))("ajv/dist/2020").default;
const schema = JSON.parse(readFileSync(join(sdk, "schema/v1/schema.json"), "utf8"));
const { agent, client: own, protocol } = acp.methods;

// Formats such as uint16 have no meaning for a validator.
const ajv = new Ajv({ strict: false, validateFormats: false, discriminator: false });
ajv.addSchema(schema, "acp");
const validators = new Map();
function validate(definition, value, line) {
  assert.ok(schema.$defs[definition], `the schema has no ${definition}`);
  if (!validators.has(definition)) validators.set(definition, ajv.compile({ $ref: `acp#/$defs/${definition}` }));
  const check = validators.get(definition);
  assert.ok(check(value), `${definition}: ${ajv.errorsText(check.errors)}: ${line}`);
}

const results = {
  [agent.initialize]: "InitializeResponse",
  [agent.session.new]: "NewSessionResponse",
  [agent.session.load]: "LoadSessionResponse",
  [agent.session.resume]: "ResumeSessionResponse",
  [agent.session.list]: "ListSessionsResponse",
  [agent.session.close]: "CloseSessionResponse",
  [agent.session.delete]: "DeleteSessionResponse",
  [agent.session.prompt]: "PromptResponse",
};
const outgoing = {
  [own.session.update]: "SessionNotification",
  [own.session.requestPermission]: "RequestPermissionRequest",
  [protocol.cancelRequest]: "CancelRequestNotification",
};
let validated = 0;

// Splits a stream into lines, and passes it on unchanged.
function lines(onLine) {
  let rest = "";
  return new Transform({
    transform(chunk, _, done) {
      const parts = (rest + chunk.toString("utf8")).split("\n");
      rest = parts.pop();
      try {
        for (const line of parts) if (line.trim()) onLine(line);
        done(null, chunk);
      } catch (error) {
        done(error);
      }
    },
  });
}

function connect(handlers) {
  const child = spawn(command[0], command.slice(1), {
    stdio: ["pipe", "pipe", "inherit"],
    env: { HOME: process.env.HOME },
  });
  const asked = new Map();
  const to = lines((line) => {
    const message = JSON.parse(line);
    if (message.method && message.id !== undefined) asked.set(message.id, message.method);
  });
  const from = lines((line) => {
    const message = JSON.parse(line);
    if (message.method) validate(outgoing[message.method], message.params, line);
    else if (message.error) validate("Error", message.error, line);
    else validate(results[asked.get(message.id)], message.result, line);
    validated += 1;
  });
  for (const stream of [to, from]) {
    stream.on("error", (error) => {
      console.error(error);
      process.exit(1);
    });
  }
  to.pipe(child.stdin);
  child.stdout.pipe(from);
  const app = acp.client({ name: "sdk-test" });
  app.onRequest(own.session.requestPermission, (context) => handlers.permission(context.params));
  app.onNotification(own.session.update, (context) => handlers.update(context.params));
  const connection = app.connect(acp.ndJsonStream(Writable.toWeb(to), Readable.toWeb(from)));
  return { child, call: (method, params) => connection.agent.request(method, params), connection };
}

let said = "";
let users = 0;
let permissions = 0;
const handlers = {
  update({ update }) {
    if (update.sessionUpdate === "agent_message_chunk") said += update.content.text;
    if (update.sessionUpdate === "user_message_chunk") users += 1;
  },
  permission({ options }) {
    permissions += 1;
    const option = options.find((one) => one.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: option.optionId } };
  },
};

const text = (words) => [{ type: "text", text: words }];
async function introduced() {
  const editor = connect(handlers);
  const hello = await editor.call(agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: {},
    clientInfo: { name: "sdk-test", version: "1" },
  });
  assert.equal(hello.protocolVersion, 1);
  assert.ok(hello.agentCapabilities.loadSession);
  return editor;
}
async function left(editor) {
  const ended = new Promise((resolve) => editor.child.on("exit", resolve));
  editor.child.stdin.end();
  assert.equal(await ended, 0);
}

let editor = await introduced();
const { sessionId } = await editor.call(agent.session.new, { cwd, mcpServers: [] });
const prompt = (words) => editor.call(agent.session.prompt, { sessionId, prompt: text(words) });
assert.equal((await prompt("say hello")).stopReason, "end_turn");
assert.equal(said, "hello");
assert.equal((await prompt("tool echo ran")).stopReason, "end_turn");
assert.ok(permissions === 1 && said.includes("ran"), said);
console.log("prompt, tool and permission");

const [one, two] = [prompt("hang"), prompt("say queued")];
await new Promise((resolve) => setTimeout(resolve, 300));
await editor.connection.agent.notify(agent.session.cancel, { sessionId });
assert.deepEqual([(await one).stopReason, (await two).stopReason], ["cancelled", "cancelled"]);
console.log("queue and cancel");

const listed = await editor.call(agent.session.list, { cwd });
assert.equal(listed.sessions[0].sessionId, sessionId);
const cut = prompt("count 60 20").catch(() => "cut");
await new Promise((resolve) => setTimeout(resolve, 300));
await left(editor);
await cut;

said = "";
editor = await introduced();
await editor.call(agent.session.load, { sessionId, cwd, mcpServers: [] });
while (!said.endsWith("60\n")) await new Promise((resolve) => setTimeout(resolve, 20));
assert.ok(said.startsWith("hello") && users === 4, `${users}: ${said}`);
console.log("left in mid-turn, and loaded");

await assert.rejects(editor.call(agent.session.load, { sessionId: "nosuch", cwd, mcpServers: [] }));
await assert.rejects(editor.call(agent.session.new, { cwd: `${cwd}/gone`, mcpServers: [] }));
await assert.rejects(prompt("die"), /signal 9/);
said = "";
assert.equal((await prompt("say again")).stopReason, "end_turn");
assert.equal(said, "again");
console.log("errors, and an agent that was killed");

await editor.call(agent.session.close, { sessionId });
await editor.call(agent.session.resume, { sessionId, cwd, mcpServers: [] });
assert.equal((await prompt("say resumed")).stopReason, "end_turn");
await editor.call(agent.session.delete, { sessionId });
assert.ok(!(await editor.call(agent.session.list, {})).sessions.some((info) => info.sessionId === sessionId));
await left(editor);
console.log(`${validated} messages are valid`);
process.exit(0);
