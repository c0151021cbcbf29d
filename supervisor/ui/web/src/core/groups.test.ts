import assert from "node:assert/strict";
import { test } from "node:test";

import type { SessionBrief } from "./api";
import { attention, group } from "./groups";
import { grouped, matches } from "./store";

const brief = (phase: string, more: Partial<SessionBrief> = {}): SessionBrief =>
  ({ id: phase, directory: "/work", phase, ...more }) as SessionBrief;
const needing = {
  conditions: [{ type: "NeedsAttention", status: "True", reason: "PermissionRequested" }],
} as Partial<SessionBrief>;

test("each phase has its group", () => {
  const phases = {
    working: ["preparing", "starting", "busy", "stopping"],
    idle: ["idle"],
    waiting: ["pending", "waiting", "backing-off", "limited"],
    ended: ["stopped", "failed", "completed"],
  };
  for (const [name, members] of Object.entries(phases))
    for (const phase of members) assert.equal(group(brief(phase)), name);
});

test("a session that needs a person is in no other group", () => {
  for (const phase of ["busy", "failed", "waiting"]) assert.equal(group(brief(phase, needing)), "needs");
  assert.equal(attention(brief("busy", needing)), "PermissionRequested");
  const over = { conditions: [{ ...needing.conditions![0]!, status: "False" }] } as Partial<SessionBrief>;
  assert.equal(group(brief("busy", over)), "working");
});

test("a phase of a later version is shown", () => {
  assert.equal(group(brief("dreaming")), "working");
});

test("the filter looks for each word in names, directories, titles and labels", () => {
  const all = [
    brief("idle", { name: "parser" as never, labels: { team: "web" } }),
    brief("busy", { directory: "/home/kim" }),
  ];
  const found = (text: string, label = "") =>
    [...grouped(all, { text, label }, ({ phase }) => (phase === "busy" ? "Fix the build" : "")).values()]
      .flat()
      .map(({ id }) => id);
  assert.deepEqual(found(""), ["busy", "idle"]);
  assert.deepEqual(found("PARSER work"), ["idle"]);
  assert.deepEqual(found("team=web"), ["idle"]);
  assert.deepEqual(found("build kim"), ["busy"]);
  assert.deepEqual(found("", "team!=web"), ["busy"]);
});

test("a selector of labels means what the endpoint's does", () => {
  const labels = { team: "web", draft: "" };
  for (const selector of ["team=web", "team", "team==web,draft", "!old", "team!=ops", " team = web "])
    assert.ok(matches(labels, selector), selector);
  for (const selector of ["team=ops", "!team", "old", "team=web,old"]) assert.ok(!matches(labels, selector), selector);
});
