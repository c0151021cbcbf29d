/** The prerequisites of a session with their facts and remedies, as of their last checks. */
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";

import type { Schemas } from "../../core/api";
import { checkPrerequisites, prerequisites } from "../../core/requests";
import { visible } from "../../core/text";
import { why } from "../../texts";
import { Remedy, Words } from "../copy";
import { Action, Content, useEvents, useLoad, type Loaded, type Place } from "./panel";
import { Facts } from "../problem";
import { When } from "./time";

type View = Schemas["PrerequisiteView"];

const texts = why.prerequisites;
/** Bounds of the time in milliseconds between two answers. */
const SHORTEST = 2000;
const LONGEST = 60_000;

/** Content of the panel of the prerequisites. */
export function Prerequisites(place: Place): VNode {
  const of = useLoad(() => prerequisites(place.host.base, place.id), "");
  useEvents(
    place,
    (kind) => kind.startsWith("prerequisites.") || kind === "session.state",
    () => of.load(),
  );
  useNextCheck(of);
  return (
    <>
      {!place.readOnly && (
        <p>
          <Action busy={of.busy} run={() => of.load(() => checkPrerequisites(place.host.base, place.id))}>
            {texts.check}
          </Action>
        </p>
      )}
      <Content of={of}>
        {({ prerequisites: all }) =>
          all.length === 0 ? (
            <p>{texts.none}</p>
          ) : (
            <ul class="entries">
              {all.map((one) => (
                <Row key={one.name} prerequisite={one} />
              ))}
            </ul>
          )
        }
      </Content>
    </>
  );
}

/** Loads again after the next check. An outcome that stays the same has no event. */
function useNextCheck({ value, busy, load }: Loaded<Schemas["PrerequisiteList"]>): void {
  const times = value?.prerequisites.flatMap(({ next_at: at }) => (at ? [new Date(at).getTime()] : [])) ?? [];
  const next = times.length === 0 ? undefined : Math.min(...times);
  useEffect(() => {
    if (busy) return undefined;
    const wait = Math.min(LONGEST, Math.max(SHORTEST, (next ?? Infinity) - Date.now() + SHORTEST / 2));
    const run = () => document.hidden || load();
    const timer = setTimeout(run, wait);
    // A hidden page asks for nothing, and catches up when somebody looks at it.
    document.addEventListener("visibilitychange", run);
    return () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", run);
    };
  }, [next, busy, load, value]);
}

function Row({ prerequisite }: { prerequisite: View }): VNode {
  const { name, report, problem, plugin, on_failure: onFailure, next_at: next } = prerequisite;
  const outcome = report?.outcome;
  const bad = outcome !== "pass";
  return (
    <li data-prerequisite={name} data-outcome={outcome} class={bad ? "look" : "fine"}>
      <p>
        <strong>{visible(name)}</strong>{" "}
        <span class={`outcome ${outcome ?? "unknown"}`}>
          {outcome === undefined ? texts.never : why.outcomes[outcome]}
        </span>
      </p>
      {problem && (
        <p class="warning">
          <Words text={problem} />
        </p>
      )}
      {report && <p dir="auto">{visible(report.summary)}</p>}
      {report && bad && <p class="aside">{onFailure === "warn" ? texts.warns : texts.fails}</p>}
      <Facts facts={report?.facts} />
      {report?.remedy && <Remedy text={report.remedy} />}
      <p class="aside">
        {report && (
          <>
            {texts.checked} <When at={report.checked_at} />, {texts.took(report.took_ms)}
          </>
        )}
        {next && (
          <>
            , {texts.next} <When at={next} />
          </>
        )}
        {" · "}
        {texts.by(visible(plugin))}
      </p>
    </li>
  );
}
