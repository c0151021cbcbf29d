// Drives `/acp` with the official SDK: one life over HTTP and one over WebSocket. Prints one line for each; the exit
// status is 1 at the first fault.
//
//   node remote.mjs MODULES DIRECTORY ADDRESS TOKEN
//
// MODULES is a node_modules directory with @agentclientprotocol/sdk and ws. The address selects the scripted agent of
// these tests.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, cwd, address, token] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(join(modules, "@agentclientprotocol/sdk/dist", path)).href);
const acp = await load("v1/stable/acp.js");
const { createHttpStream } = await load("transports/http-stream.js");
const { createWebSocketStream } = await load("transports/ws-stream.js");
const WebSocket = createRequire(join(modules, "x.js"))("ws");
const { agent, client: own } = acp.methods;
const headers = { Authorization: `Bearer ${token}` };
const streams = {
  http: () => createHttpStream(`http://${address}`, { headers }),
  websocket: () => createWebSocketStream(`ws://${address}`, { headers, WebSocket }),
};

for (const [name, stream] of Object.entries(streams)) {
  let said = "";
  let permissions = 0;
  const connect = () => {
    const app = acp.client({ name: "sdk-test" });
    app.onRequest(own.session.requestPermission, ({ params: { options } }) => {
      permissions += 1;
      const option = options.find((one) => one.kind === "allow_once");
      return { outcome: { outcome: "selected", optionId: option.optionId } };
    });
    app.onNotification(own.session.update, ({ params: { update } }) => {
      if (update.sessionUpdate === "agent_message_chunk") said += update.content.text;
    });
    return app.connect(stream());
  };
  const introduced = async () => {
    const connection = connect();
    const call = (method, params) => connection.agent.request(method, params);
    const hello = await call(agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
    assert.equal(hello.protocolVersion, 1);
    return { connection, call };
  };
  const prompts = ({ call }, sessionId) => (text) =>
    call(agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });

  const first = await introduced();
  const { sessionId } = await first.call(agent.session.new, { cwd, mcpServers: [] });
  const prompt = prompts(first, sessionId);
  assert.equal((await prompt("say hello")).stopReason, "end_turn");
  assert.equal((await prompt("tool echo ran")).stopReason, "end_turn");
  assert.ok(permissions === 1 && said.startsWith("hello") && said.includes("ran"), said);
  const hanging = prompt("hang");
  await first.connection.agent.notify(agent.session.cancel, { sessionId });
  assert.equal((await hanging).stopReason, "cancelled");
  await assert.rejects(first.call(agent.session.new, { cwd: `${cwd}/gone`, mcpServers: [] }));

  const second = await introduced();
  said = "";
  await second.call(agent.session.load, { sessionId, cwd, mcpServers: [] });
  assert.ok(said.startsWith("hello"), said);
  assert.equal((await prompts(second, sessionId)("say again")).stopReason, "end_turn");
  assert.ok(said.endsWith("again"), said);
  const { sessions } = await second.call(agent.session.list, { cwd });
  assert.ok(sessions.some((one) => one.sessionId === sessionId));
  await second.call(agent.session.delete, { sessionId });
  console.log(`${name}: done`);
}
process.exit(0);
