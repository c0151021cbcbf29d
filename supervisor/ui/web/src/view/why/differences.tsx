/** Differences between two environments of a session. */
import type { VNode } from "preact";
import { useId, useState } from "preact/hooks";

import type { Schemas } from "../../core/api";
import { shellWord } from "../../core/remedy";
import { difference, type EnvironmentMoment } from "../../core/requests";
import { visible } from "../../core/text";
import { why } from "../../texts";
import { Command } from "../copy";
import { text } from "./environment";
import { Action, Content, useEvents, useLoad, type Place } from "./panel";

type Pair = keyof typeof why.differences.pairs;
type Sign = keyof typeof why.differences.signs;

const texts = why.differences;
const PAIRS = Object.keys(texts.pairs) as Pair[];
const SIGNS: Record<Sign, string> = { added: "+", changed: "~", removed: "−" };

/** Content of the panel of the differences. */
export function Differences(place: Place): VNode {
  const [pair, setPair] = useState<Pair>("last now");
  const [values, setValues] = useState(false);
  const id = useId();
  return (
    <>
      <div class="controls">
        <label for={id}>{texts.choose}</label>
        <select id={id} value={pair} onChange={(event) => setPair(event.currentTarget.value as Pair)}>
          {PAIRS.map((name) => (
            <option key={name} value={name}>
              {texts.pairs[name]}
            </option>
          ))}
        </select>
        {pair !== "terminal" && (
          <label class="check">
            <input type="checkbox" checked={values} onChange={(event) => setValues(event.currentTarget.checked)} />
            {why.values}
          </label>
        )}
      </div>
      {pair === "terminal" ? (
        <p>
          {texts.terminal} <Command text={`agentctl env ${shellWord(place.id)} --diff terminal`} />
        </p>
      ) : (
        <Moments key={pair} place={place} pair={pair} values={values} />
      )}
    </>
  );
}

interface Props {
  place: Place;
  pair: Exclude<Pair, "terminal">;
  values: boolean;
}

function Moments({ place, pair, values }: Props): VNode {
  const [from, to] = pair.split(" ") as [EnvironmentMoment, EnvironmentMoment];
  const of = useLoad(() => difference(place.host.base, place.id, [from, to], values), String(values));
  // An environment of now runs scripts, so only a person asks for it again.
  useEvents(
    place,
    (kind) => kind === "environment.built",
    () => to !== "now" && of.load(),
  );
  return (
    <>
      <Content of={of}>
        {(view) => {
          const { added, changed, removed, not_compared: secrets } = view;
          const equal = added.length + changed.length + removed.length === 0;
          return (
            <>
              <p role="status">{equal ? texts.none : texts.count(added.length, changed.length, removed.length)}</p>
              <ul class="entries">
                {added.map((change) => (
                  <Change key={change.name} sign="added" change={change} />
                ))}
                {changed.map((change) => (
                  <Change key={change.name} sign="changed" change={change} />
                ))}
                {removed.map((change) => (
                  <Change key={change.name} sign="removed" change={change} />
                ))}
              </ul>
              {secrets.length > 0 && <p class="aside">{visible(texts.notCompared(secrets.join(", ")))}</p>}
            </>
          );
        }}
      </Content>
      <Action busy={of.busy} run={() => of.load()}>
        {why.reload}
      </Action>
    </>
  );
}

function Change({ sign, change }: { sign: Sign; change: Schemas["ChangeView"] }): VNode {
  const { name, secret, before, after } = change;
  return (
    <li class={`change ${sign}`} data-change={name}>
      <p>
        <span class="sign" aria-hidden="true">
          {SIGNS[sign]}
        </span>{" "}
        <strong>
          <code dir="ltr">{visible(name)}</code>
        </strong>{" "}
        <span class="outcome">{texts.signs[sign]}</span>
      </p>
      <p class="sides">
        <Side step={before} secret={secret} /> → <Side step={after} secret={secret} />
      </p>
    </li>
  );
}

/** One side of a change: the provider that set or dropped the variable, and the value as far as it may be shown. */
function Side({ step, secret }: { step: Schemas["StepView"] | null | undefined; secret: boolean }): VNode {
  if (!step) return <span class="side absent">{texts.absent}</span>;
  if (step.removed) return <span class="side absent">{visible(texts.droppedBy(step.provider))}</span>;
  const value = secret ? undefined : text(step.value);
  return (
    <span class="side">
      {visible(step.provider)}
      {secret && <> ({why.secret})</>}
      {value !== undefined && (
        <code class="whole" dir="ltr">
          {visible(value)}
        </code>
      )}
    </span>
  );
}
