/** A failure in words: what happened, what to do, and the prerequisites that are missing. */
import type { VNode } from "preact";

import { Refused, type Problem } from "../core/api";
import { visible } from "../core/text";
import { texts } from "../texts";

export function Trouble({ of }: { of: unknown }): VNode | null {
  if (of === undefined) return null;
  const problem =
    of instanceof Refused
      ? (of.problem as Partial<Problem>)
      : { detail: of instanceof Error ? of.message : String(of) };
  return (
    <div class="trouble" role="alert" data-code={problem.code}>
      <p>
        <bdi>{visible(problem.detail ?? "")}</bdi>
      </p>
      {problem.hint && (
        <p class="remedy">
          <bdi>{visible(problem.hint)}</bdi>
        </p>
      )}
      {(problem.prerequisites?.length ?? 0) > 0 && (
        <>
          <p>{texts.head.prerequisites}</p>
          <ul>
            {problem.prerequisites!.map((check, index) => (
              <li key={index}>
                <b>
                  <bdi>{visible(check.name)}</bdi>
                </b>
                : <bdi>{visible(check.summary)}</bdi>
                {check.remedy && (
                  <p class="remedy">
                    <bdi>{visible(check.remedy)}</bdi>
                  </p>
                )}
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}
