// Native tests with stand-ins for the host's functions. The .toml files beside this one test the component in
// agentd's sandbox.

import assert from "node:assert/strict";
import { test } from "node:test";

import { check } from "../reachable.js";

/** Returns the report if connecting behaves as `exchange`. */
function checked(settings, exchange) {
  const given = { host: ["licence.corp"], port: ["27000"], ...settings };
  const request = {
    session: null,
    environment: [],
    settings: Object.entries(given).map(([key, values]) => ({ key, values })),
  };
  return check(request, { exchange });
}

function problem(tag, val) {
  return () => {
    throw Object.assign(new Error(tag), { payload: { tag, val } });
  };
}

test("a server that answers is told with its address", () => {
  const report = checked({}, () => ({ address: "10.0.0.1", connected: 3, received: [], ending: "complete" }));
  assert.equal(report.outcome, "pass");
  assert.deepEqual(report.facts[0], { name: "address", value: "10.0.0.1" });
});

test("where it does not, the user is told what to do", () => {
  for (const tag of ["no-such-host", "refused", "unreachable", "timed-out"]) {
    const report = checked({ remedy: ["start the VPN"] }, problem(tag, "?"));
    assert.deepEqual([report.outcome, report.remedy], ["fail", "start the VPN"], tag);
  }
});

test("a name service that is down tells nothing about the server", () => {
  assert.equal(checked({}, problem("not-resolved", "no answer")).outcome, "unknown");
});

test("what is not granted is a failure and no report", () => {
  const refused = { tag: "not-granted", val: "licence.corp:27000" };
  assert.throws(() => checked({}, problem("other", refused)), (thrown) => thrown === refused);
});

test("a setting that is wrong is named", () => {
  const wrongs = [["host", [""]], ["port", ["0"]], ["port", ["65536"]], ["time", ["soon"]], ["remedy", []]];
  for (const [key, values] of wrongs) {
    const wrong = (thrown) => thrown.tag === "configuration" && thrown.val.key === key;
    assert.throws(() => checked({ [key]: values }, problem("refused", "?")), wrong);
  }
});
