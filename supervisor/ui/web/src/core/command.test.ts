import assert from "node:assert/strict";
import { test } from "node:test";

import { onMachine } from "./command";

const lab = { name: "kim~lab", label: "kim@lab", options: ["--host", "kim@lab"] };
const here = { name: "this", label: "this machine", options: [] };

test("a command for another machine has its name", () => {
  assert.deepEqual(onMachine("agentctl env allow /work", lab), { line: "agentctl --host kim@lab env allow /work" });
  assert.deepEqual(onMachine("agentctl plugin ls", lab), { line: "agentctl --host kim@lab plugin ls" });
  const strange = { name: "a~b", label: "a b", options: ["--host", "a b"] };
  assert.deepEqual(onMachine("agentctl ls", strange), { line: "agentctl --host 'a b' ls" });
});

test("a command for this machine stays, and so do other words", () => {
  const command = "agentctl env allow /work";
  assert.deepEqual(onMachine(command, here), { line: command });
  assert.deepEqual(onMachine(command, undefined), { line: command });
  for (const words of ["agentctl", "launch.manager", "sudo systemctl start nfs", "agentctl ui"])
    assert.deepEqual(onMachine(words, lab), { line: words });
});

test("a command for a daemon that was named by its socket or address has the same options", () => {
  const other = { ...here, options: ["--socket", "/run/a b.sock"] };
  assert.deepEqual(onMachine("agentctl ls", other), { line: "agentctl --socket '/run/a b.sock' ls" });
  assert.deepEqual(onMachine("agentctl ui", other), { line: "agentctl ui" });
});

test("a command that names a daemon already stays", () => {
  for (const line of ["agentctl --host other ls", "agentctl ls --socket /run/x"])
    assert.deepEqual(onMachine(line, lab), { line });
});

test("a command that concerns the machine itself must run there", () => {
  for (const line of ["agentctl doctor", "agentctl service start", "agentctl plugin check x.wasm"])
    assert.deepEqual(onMachine(line, lab), { line, on: "kim@lab" });
  const root = "systemctl start nfs";
  assert.deepEqual(onMachine(root, lab, true), { line: root, on: "kim@lab" });
  assert.deepEqual(onMachine(root, here, true), { line: root });
});
