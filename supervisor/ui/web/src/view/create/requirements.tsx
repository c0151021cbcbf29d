/** The prerequisites that a new session needs. */
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { Schemas } from "../../core/api";
import type { Host } from "../../core/login";
import { prerequisites } from "../../core/requests";
import { visible } from "../../core/text";
import { create, why } from "../../texts";
import type { Form } from "./fields";

type View = Schemas["PrerequisiteView"];

interface Props {
  form: Form;
  host: Host;
  /** The agent that the session will have. */
  agent: string | undefined;
}

/** The configured prerequisites as boxes to tick. Those that the session needs in any case are ticked. */
export function Requirements({ form, host, agent }: Props): VNode {
  const [all, setAll] = useState<View[]>();
  useEffect(() => {
    let current = true;
    prerequisites(host.base).then(
      ({ prerequisites: views }) => current && setAll(views),
      // A draft keeps its prerequisites without the list, and the daemon examines them.
      () => current && setAll([]),
    );
    return () => {
      current = false;
    };
  }, [host]);
  const { requires } = form.draft;
  const gone = requires.filter((name) => !all?.some((one) => one.name === name));
  const choose = (name: string, wanted: boolean) =>
    form.change({ requires: wanted ? [...requires, name] : requires.filter((other) => other !== name) });
  return (
    <fieldset class="field" aria-invalid={form.blamed === "requires"}>
      <legend>{create.requires}</legend>
      {all?.length === 0 && gone.length === 0 && <p class="help">{create.noRequires}</p>}
      {all?.map((one) => {
        const reason = forced(one, agent);
        return (
          <Box
            key={one.name}
            name={one.name}
            chosen={reason !== undefined || requires.includes(one.name)}
            reason={reason}
            outcome={one.report?.outcome}
            choose={(wanted) => choose(one.name, wanted)}
          />
        );
      })}
      {all !== undefined &&
        gone.map((name) => (
          <Box
            key={name}
            name={name}
            chosen
            reason={undefined}
            outcome={undefined}
            choose={() => choose(name, false)}
          />
        ))}
    </fieldset>
  );
}

/** Returns why the session needs a prerequisite in any case. */
function forced({ required_by: by }: View, agent: string | undefined): string | undefined {
  if (by.all === true) return create.always;
  return agent !== undefined && by.agents?.includes(agent) ? create.byAgent(agent) : undefined;
}

interface BoxProps {
  name: string;
  chosen: boolean;
  reason: string | undefined;
  outcome: Schemas["Outcome"] | undefined;
  choose: (wanted: boolean) => void;
}

function Box({ name, chosen, reason, outcome, choose }: BoxProps): VNode {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={chosen}
        disabled={reason !== undefined}
        onChange={(event) => choose(event.currentTarget.checked)}
      />
      <span>{visible(name)}</span>
      {outcome !== undefined && <span class={`outcome ${outcome}`}>{why.outcomes[outcome]}</span>}
      {reason !== undefined && <span class="aside">{visible(reason)}</span>}
    </label>
  );
}
