/** A failure with everything that `agentctl` prints of it: detail, checks, mistakes, hint and code. */
import type { VNode } from "preact";

import { Refused, type Schemas } from "../core/api";
import { visible } from "../core/text";
import { why } from "../texts";
import { Remedy, Words } from "./copy";

/** A failure, announced to screen readers. Without one there is nothing. */
export function ProblemView({ of }: { of: unknown }): VNode | null {
  if (of === undefined) return null;
  const problem: Partial<Schemas["Problem"]> =
    of instanceof Refused ? of.problem : { detail: of instanceof Error ? of.message : String(of) };
  return (
    <div class="problem" role="alert" data-code={problem.code}>
      <p class="detail">
        <Words text={problem.detail ?? ""} />
      </p>
      {problem.prerequisites?.map((report) => (
        <Report key={report.name} report={report} />
      ))}
      {problem.mistakes && <Mistakes mistakes={problem.mistakes} />}
      {problem.reasons && (
        <ul>
          {problem.reasons.map((reason) => (
            <li key={reason.code}>
              {visible(reason.detail)} {reason.hint && <Words text={reason.hint} />}
            </li>
          ))}
        </ul>
      )}
      {problem.hint && (
        <p class="advice">
          <strong>{why.hint}:</strong> <Words text={problem.hint} />
        </p>
      )}
      {problem.code !== undefined && problem.status !== 0 && (
        <p class="code">
          {why.code}: <code>{problem.code}</code>
        </p>
      )}
    </div>
  );
}

/** The result of a check with its facts and its remedy. */
function Report({ report }: { report: Schemas["CheckReport"] }): VNode {
  return (
    <div class="report">
      <p>
        <strong>{visible(report.name)}</strong> ({report.outcome}): {visible(report.summary)}
      </p>
      <Facts facts={report.facts} />
      {report.remedy && <Remedy text={report.remedy} />}
    </div>
  );
}

/** Details of a finding as names and values. */
export function Facts({ facts }: { facts: Schemas["Fact"][] | undefined }): VNode | null {
  if (facts === undefined || facts.length === 0) return null;
  return (
    <dl class="fact-list">
      {facts.map(({ name, value }, index) => (
        <div key={index}>
          <dt dir="auto">{visible(name)}</dt>
          <dd dir="auto">{visible(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Mistakes of the configuration with their places. */
export function Mistakes({ mistakes }: { mistakes: Schemas["Mistake"][] }): VNode {
  return (
    <ul>
      {mistakes.map((mistake, index) => (
        <MistakeView key={index} mistake={mistake} />
      ))}
    </ul>
  );
}

function MistakeView({ mistake }: { mistake: Schemas["Mistake"] }): VNode {
  const place = [mistake.file, mistake.line, mistake.column].filter((part) => part !== null && part !== undefined);
  return (
    <li>
      {place.length > 0 && <code dir="ltr">{visible(place.join(":"))}: </code>}
      {mistake.key && <code>{visible(mistake.key)}: </code>}
      {visible(mistake.message)}
    </li>
  );
}
