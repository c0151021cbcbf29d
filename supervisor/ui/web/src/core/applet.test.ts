import assert from "node:assert/strict";
import { test } from "node:test";

import { appletOf, isSame, told } from "./applet";

const applet = { slug: "wave", parameters: ["zoom=2"], url: "http://127.0.0.1:8000/wave" };
const origin = "http://localhost:8000";

test("an applet reports its parameters and its address", () => {
  const message = { agentd: "applet", parameters: { zoom: "5", file: "a.vcd" }, url: `${origin}/wave?x=1#t=3` };
  const next = { slug: "wave", parameters: ["zoom=5", "file=a.vcd"], url: "http://127.0.0.1:8000/wave?x=1#t=3" };
  assert.deepEqual(told(applet, message, origin), next);
});

test("other messages are ignored, and an address stays on its origin", () => {
  for (const message of [null, "applet", 7, {}, { agentd: "other" }])
    assert.equal(told(applet, message, origin), undefined);
  for (const url of ["https://evil.example/", "javascript:alert(1)", 7, "x".repeat(3_000)]) {
    assert.equal(told(applet, { agentd: "applet", url }, origin)?.url, applet.url);
  }
  const odd = { agentd: "applet", parameters: { "a=b": "1", "": "2", ok: "3", line: "1\n2", number: 4 } };
  assert.deepEqual(told(applet, odd, origin)?.parameters, ["ok=3"]);
});

test("an applet comes from the context's set", () => {
  const sets = { applet: [{ value: "wave" }, { value: "zoom=2" }] };
  assert.ok(isSame(appletOf({ sets, applet_url: applet.url }), applet));
  assert.equal(appletOf({ sets: {} }), undefined);
});
