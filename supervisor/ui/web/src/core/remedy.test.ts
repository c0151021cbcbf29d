import assert from "node:assert/strict";
import { test } from "node:test";

import { remedy, shellWord } from "./remedy";

const dropped = (fields: object) => ({ name: "JAVA_HOME", provider: "whitelist", step: 2, ...fields });

test("the whitelist keeps a variable by its name", () => {
  const command = "agentctl env keep JAVA_HOME";
  assert.deepEqual(remedy(dropped({ reason: "not in the minimal list" })), { kind: "keep", command });
  assert.deepEqual(remedy(dropped({ provider: "corp", reason: 'not in "allow"' })), { kind: "keep", command });
});

test("a script that removed a variable is edited, and another provider has settings", () => {
  assert.deepEqual(remedy(dropped({ origin: "/w/.agentd-env.sh" })), { kind: "edit", file: "/w/.agentd-env.sh" });
  assert.deepEqual(remedy(dropped({ provider: "corp", reason: "policy" })), { kind: "settings" });
});

test("a word for a shell is quoted only if a shell would change it", () => {
  assert.equal(shellWord("/work/a-b.sh"), "/work/a-b.sh");
  assert.equal(shellWord("it's $HOME"), `'it'\\''s $HOME'`);
  assert.equal(shellWord(""), "''");
});
