/** The findings of the daemon about itself, with their remedies. */
import type { VNode } from "preact";

import type { Schemas } from "../../core/api";
import { doctor } from "../../core/requests";
import { visible } from "../../core/text";
import { why } from "../../texts";
import { Command, Remedy } from "../copy";
import { Action, Content, useLoad, type Place } from "./panel";
import { Facts } from "../problem";

type Check = Schemas["Check"];

const texts = why.doctor;

/** Content of the panel of the findings. */
export function Doctor({ host }: Place): VNode {
  const of = useLoad(() => doctor(host.base), "");
  return (
    <>
      <p>
        {texts.note} <Command text="agentctl doctor" />
      </p>
      <p>
        <Action busy={of.busy} run={() => of.load()}>
          {why.reload}
        </Action>
      </p>
      <Content of={of}>
        {({ checks }) => {
          const findings = checks.filter(({ outcome }) => outcome !== "pass");
          const passing = checks.filter(({ outcome }) => outcome === "pass");
          return (
            <>
              {findings.length === 0 && <p>{texts.allPass}</p>}
              <ul class="entries">
                {findings.map((check) => (
                  <Row key={check.name} check={check} />
                ))}
              </ul>
              {passing.length > 0 && (
                <details class="more">
                  <summary>{texts.passes(passing.length)}</summary>
                  <ul class="entries">
                    {passing.map((check) => (
                      <Row key={check.name} check={check} />
                    ))}
                  </ul>
                </details>
              )}
            </>
          );
        }}
      </Content>
    </>
  );
}

function Row({ check: { facts, name, outcome, remedy, run, summary } }: { check: Check }): VNode {
  return (
    <li data-check={name} data-outcome={outcome} class={outcome === "pass" ? "fine" : "look"}>
      <p>
        <strong>{visible(name)}</strong> <span class={`outcome ${outcome}`}>{why.outcomes[outcome]}</span>
      </p>
      <p dir="auto">{visible(summary)}</p>
      <Facts facts={facts} />
      {remedy && <Remedy text={remedy} />}
      {run?.map(({ as_root: asRoot, line }) => (
        <p key={line}>
          {why.run(asRoot ?? false)}: <Command text={line} isBound />
        </p>
      ))}
    </li>
  );
}
