/** The state of a session: its phase with the reason, and the conditions that need a look. */
import type { VNode } from "preact";

import type { Schemas, SessionView } from "../../core/api";
import { failureRemedy } from "../../core/failure";
import { placeFacts } from "../../core/place";
import { visible } from "../../core/text";
import { texts, why } from "../../texts";
import { Remedy, Words } from "../copy";
import { When } from "./time";

type Condition = Schemas["Condition"];

/** Conditions that are a finding while they are true. Every other condition is one unless it is true. */
const FINDINGS: readonly string[] = [
  "AuthenticationRequired",
  "RateLimited",
  "EnvironmentDrifted",
  "Degraded",
  "NeedsAttention",
];

/** Returns whether a condition needs a look. */
export function needsLook({ type, status }: Pick<Condition, "type" | "status">): boolean {
  return FINDINGS.includes(type) ? status !== "False" : status !== "True";
}

/** Content of the panel of the state. */
export function State({ view }: { view: SessionView }): VNode {
  const { conditions, degraded, launches, message, phase, place } = view.status;
  const cure = failureRemedy(view);
  const open = conditions.filter(needsLook);
  const fine = conditions.filter((condition) => !needsLook(condition));
  return (
    <>
      <dl class="fact-list">
        <div>
          <dt>{why.state.phase}</dt>
          <dd>
            <span class={`badge ${phase}`}>{phase}</span> {message && <Words text={message} />}
          </dd>
        </div>
        <div>
          <dt>{why.state.launches}</dt>
          <dd>{launches}</dd>
        </div>
        {place && <Place place={place} />}
      </dl>
      {cure !== undefined && <Remedy text={cure} />}
      {degraded && degraded.length > 0 && (
        <>
          <h3>{why.state.degraded}</h3>
          <Parts parts={degraded} />
        </>
      )}
      {open.length === 0 ? (
        <p>{why.state.noneOpen}</p>
      ) : (
        <>
          <h3>{why.state.open}</h3>
          <Conditions conditions={open} />
        </>
      )}
      {fine.length > 0 && (
        <details class="more">
          <summary>{why.state.fine(fine.length)}</summary>
          <Conditions conditions={fine} />
        </details>
      )}
    </>
  );
}

/** The place of the last agent: its state, the words of its engine, and the machine there. */
function Place({ place }: { place: Schemas["PlaceView"] }): VNode {
  return (
    <>
      <div data-fact="place">
        <dt>{why.state.place}</dt>
        <dd>
          <bdi>{visible(place.name)}</bdi>{" "}
          <span class="badge">{texts.places[place.state] ?? visible(place.state)}</span>
        </dd>
      </div>
      {placeFacts(place).map(([name, value]) => (
        <div key={name} data-fact={`place-${name}`}>
          <dt>{why.state.ofPlace[name]}</dt>
          <dd>
            <bdi>{visible(value)}</bdi>
          </dd>
        </div>
      ))}
    </>
  );
}

function Conditions({ conditions }: { conditions: Condition[] }): VNode {
  return (
    <ul class="entries">
      {conditions.map((condition) => (
        <li key={condition.type} data-condition={condition.type} class={needsLook(condition) ? "look" : "fine"}>
          <p>
            <strong>{condition.type}</strong> <span class="outcome">{why.state.statuses[condition.status]}</span>{" "}
            <code>{visible(condition.reason)}</code>{" "}
            <span class="aside">
              {why.state.since} <When at={condition.last_transition_time} />
            </span>
          </p>
          {condition.message && (
            <p>
              <Words text={condition.message} />
            </p>
          )}
        </li>
      ))}
    </ul>
  );
}

/** Parts that a degraded launch left out. */
export function Parts({ parts }: { parts: Schemas["DegradedPart"][] }): VNode {
  return (
    <ul class="entries">
      {parts.map(({ kind, name, message }) => (
        <li key={`${kind} ${name}`}>
          <strong>
            {kind} {visible(name)}
          </strong>
          : <Words text={message} />
        </li>
      ))}
    </ul>
  );
}
