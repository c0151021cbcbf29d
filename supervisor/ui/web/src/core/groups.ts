/** The groups of the list, from phases and conditions. `agentctl top` has the same rule. */
import type { SessionBrief } from "./api";

export const GROUPS = ["needs", "working", "idle", "waiting", "ended"] as const;
export type Group = (typeof GROUPS)[number];

/** Returns the reason why a session needs a person, or undefined. */
export function attention(brief: SessionBrief): string | undefined {
  return brief.conditions?.find((condition) => condition.type === "NeedsAttention" && condition.status === "True")
    ?.reason;
}

/**
 * Returns the group of a session. A session that needs a person is in no other group.
 *
 * `waiting` is for its world: a prerequisite, the end of a rate limit, the next attempt after a crash, a first launch.
 * A launch that prepares or starts its agent makes progress by itself, so it is working.
 */
export function group(brief: SessionBrief): Group {
  if (attention(brief) !== undefined) return "needs";
  switch (brief.phase) {
    case "preparing":
    case "starting":
    case "busy":
    case "stopping":
      return "working";
    case "idle":
      return "idle";
    case "pending":
    case "waiting":
    case "backing-off":
    case "limited":
      return "waiting";
    case "stopped":
    case "failed":
    case "completed":
      return "ended";
    default:
      // A phase of a later version. Whoever looks at the session sees its name.
      return "working";
  }
}

/** Returns whether a session has ended, so that it can be resumed or removed. */
export function isOver(phase: SessionBrief["phase"] | undefined): boolean {
  return phase === "stopped" || phase === "failed" || phase === "completed";
}
