/** Remedies for a failed session, with the rules of `agentctl`. Commands in them stand between backticks. */
import type { SessionView } from "./api";
import { shellWord } from "./remedy";

/** Reasons of a failed launch for which a degraded launch may succeed. */
const DEGRADABLE = new Set([
  "PrerequisiteFailed",
  "WaitTimedOut",
  "PluginNotLoaded",
  "PluginSuspended",
  "ProviderFailed",
  "ProviderNotGranted",
  "ProviderAnswerInvalid",
  "ScriptNotApproved",
  "ScriptFailed",
  "ScriptTimedOut",
  "ScriptSyntaxError",
  "ScriptInterpreterUnknown",
  "LoginShellFailed",
  "LoginShellTimedOut",
  "TerminalGone",
  "SecretUnavailable",
  "GitMissing",
  "CloneFailed",
  "RepositoryLogin",
  "NoSuchBranch",
  "NoSuchRepository",
  "RepositoryTimedOut",
  "PathTaken",
  "RepositoryUnreadable",
  "RepositoryBusy",
  "ResetFailed",
  "WorktreeFailed",
  "NoWorkflow",
  "WorkflowInvalid",
  "WorkflowNotApproved",
  "WorkflowUnreadable",
]);

/** Words of a message about something that no launch leaves out. */
const NOT_LEFT_OUT = "a degraded launch cannot leave this out";

/** Returns the remedy of a failed session, or undefined if the session has not failed or only its message helps. */
export function failureRemedy({ id, spec, status }: SessionView): string | undefined {
  if (status.phase !== "failed") return undefined;
  const session = shellWord(spec.name ?? id);
  const reason = reasonOf(status);
  const repair = repairOf(reason, session);
  const isDegradable = DEGRADABLE.has(reason) && !status.message?.includes(NOT_LEFT_OUT);
  if (!isDegradable) return repair;
  const degraded = `start without it: \`agentctl resume ${session} --degraded\``;
  return repair === undefined ? degraded : `${repair}; or ${degraded}`;
}

/** Returns the reason of the condition that failed the session. `Ready` only repeats the message. */
function reasonOf({ conditions, message }: SessionView["status"]): string {
  const failed = conditions.filter((one) => one.status === "False" && one.type !== "Ready" && one.message === message);
  // Conditions that became false with the agent have the same message.
  return (failed.find(({ reason }) => reason !== "AgentExited") ?? failed[0])?.reason ?? "";
}

function repairOf(reason: string, session: string): string | undefined {
  const resume = `\`agentctl resume ${session}\``;
  const events = `\`agentctl events ${session} --no-follow\``;
  switch (reason) {
    case "AuthenticationRequired":
      return `once you are logged in: ${resume}`;
    case "WorkflowNotApproved":
      return `\`agentctl workflow allow ${session}\`, then ${resume}`;
    case "ConversationLost":
      return `\`agentctl resume ${session} --new-conversation\``;
    case "InitializeFailed":
      return `check the command and the agent's version; ${events} shows the whole exchange`;
    case "InitializeTimedOut":
      return (
        "check that the command speaks the Agent Client Protocol on its standard input and output: many agents " +
        `need a flag for it, such as --acp; then: ${resume}`
      );
    case "NotExecuted":
      return (
        "check the command with `agentctl agents`, and the PATH that it was looked for in with " +
        `\`agentctl env ${session} --explain PATH\`; then: ${resume}`
      );
    case "LoginShellTimedOut":
      return (
        "find what blocks the shell's start-up files, or raise environment.deadline; or begin with a terminal: " +
        `\`agentctl run --env-from terminal\`; then: ${resume}`
      );
    case "ScriptTimedOut":
      return `raise environment.deadline, or fix the script; then: ${resume}`;
    case "PrerequisiteFailed":
    case "WaitTimedOut":
      return `\`agentctl check --session ${session}\`, then ${resume}`;
    case "AgentExited":
    case "CancelIgnored":
    case "OutOfMemory":
    case "TooManyTasks":
    case "ConversationTimedOut":
    case "Parked":
      return `${resume} starts the agent again; ${events} shows all of its output`;
    default:
      return undefined;
  }
}
