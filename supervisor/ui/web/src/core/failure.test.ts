import assert from "node:assert/strict";
import { test } from "node:test";

import type { SessionView } from "./api";
import { failureRemedy } from "./failure";

const session = (reason: string, message = "it failed", phase = "failed") =>
  ({
    id: "k3m",
    spec: { name: "work" },
    status: {
      phase,
      message,
      conditions: [
        { type: "Ready", status: "False", reason: "Failed", message },
        { type: "ConversationReady", status: "False", reason: "AgentExited", message },
        { type: "PrerequisitesMet", status: "False", reason, message },
      ],
    },
  }) as unknown as SessionView;

test("a remedy names the commands for this session", () => {
  assert.equal(
    failureRemedy(session("PrerequisiteFailed")),
    "`agentctl check --session work`, then `agentctl resume work`; " +
      "or start without it: `agentctl resume work --degraded`",
  );
  assert.equal(failureRemedy(session("ConversationLost")), "`agentctl resume work --new-conversation`");
});

test("a degraded launch is proposed only where it can leave something out", () => {
  assert.equal(failureRemedy(session("ScriptFailed")), "start without it: `agentctl resume work --degraded`");
  const never = "the provider whitelist failed; a degraded launch cannot leave this out";
  assert.equal(failureRemedy(session("ProviderFailed", never)), undefined);
});

test("a session that has not failed has no remedy", () => {
  assert.equal(failureRemedy(session("PrerequisiteFailed", "it waits", "waiting")), undefined);
});
