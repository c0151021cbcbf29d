import assert from "node:assert/strict";
import { test } from "node:test";

import { durations } from "./durations";

const line = (kind: string, labels: string, value: number) =>
  `agentd_plugin_call_duration_seconds_${kind}{${labels}} ${value}`;

test("durations are the mean of a plugin's calls and a bound of nearly all", () => {
  const text = [
    "# TYPE agentd_plugin_call_duration_seconds histogram",
    line("sum", 'plugin="tcp"', 2),
    line("count", 'plugin="tcp"', 100),
    line("bucket", 'le="+Inf",plugin="tcp"', 100),
    line("bucket", 'le="0.5",plugin="tcp"', 95),
    line("bucket", 'le="0.025",plugin="tcp"', 94),
    line("count", 'plugin="never"', 0),
    "agentd_journal_lag_seconds_count 3",
  ].join("\n");
  assert.deepEqual([...durations(text)], [["tcp", { calls: 100, mean: 0.02, most: 0.5 }]]);
});

test("a plugin whose slowest calls are beyond every bucket has no bound", () => {
  const text = [
    line("sum", 'plugin="a"', 30),
    line("count", 'plugin="a"', 2),
    line("bucket", 'plugin="a",le="10.0"', 1),
  ];
  assert.equal(durations(text.join("\n")).get("a")?.most, Infinity);
});

test("a text without metrics has no durations", () => {
  assert.equal(durations("{}").size, 0);
});
