/** The snapshots with which environments begin: their age, their quality, and what they lack. */
import type { ComponentChildren, VNode } from "preact";

import type { Schemas } from "../../core/api";
import { refreshSnapshots, snapshots } from "../../core/requests";
import { visible } from "../../core/text";
import { why } from "../../texts";
import { Words } from "../copy";
import { Action, Content, useLoad, type Place } from "./panel";
import { age, took, When } from "./time";

type Login = Schemas["LoginSnapshotView"];

const texts = why.snapshot;
/** States in which an environment begins with the snapshot as it is. */
const GOOD: readonly string[] = ["fresh", "capturing"];

/** Content of the panel of the snapshots. */
export function Snapshot({ host, readOnly }: Place): VNode {
  const of = useLoad(() => snapshots(host.base), "");
  return (
    <>
      <p class="controls">
        <Action busy={of.busy} run={() => of.load()}>
          {why.reload}
        </Action>
        {!readOnly && (
          <Action busy={of.busy} run={() => of.load(() => refreshSnapshots(host.base))}>
            {texts.refresh}
          </Action>
        )}
      </p>
      <Content of={of}>
        {({ login_shells: shells, terminals }) => (
          <>
            {shells.length === 0 && <p>{texts.none}</p>}
            <ul class="entries">
              {shells.map((one, index) => (
                <Shell key={index} snapshot={one} />
              ))}
            </ul>
            {terminals.length > 0 && <h3>{texts.terminals}</h3>}
            <ul class="entries">
              {terminals.map(({ id, variables, captured }) => (
                <li key={id}>
                  <code>{visible(id)}</code>: {texts.terminal(variables)} <When at={captured} />
                </li>
              ))}
            </ul>
          </>
        )}
      </Content>
    </>
  );
}

function Shell({ snapshot }: { snapshot: Login }): VNode {
  const { quality, state } = snapshot;
  const good = GOOD.includes(state) && quality !== "degraded";
  return (
    <li data-state={state} class={good ? "fine" : "look"}>
      <p>
        <strong>
          <code dir="ltr">{visible(snapshot.shell)}</code>
        </strong>{" "}
        <span class={`outcome ${good ? "pass" : "warn"}`}>{texts.states[state]}</span>
      </p>
      {snapshot.reason && (
        <p class="warning">
          <Words text={snapshot.reason} />
        </p>
      )}
      <dl class="fact-list">
        <Entry name={texts.quality}>{quality && texts.qualities[quality]}</Entry>
        <Entry name={texts.age}>{snapshot.age_seconds != null && age(snapshot.age_seconds)}</Entry>
        <Entry name={texts.captured}>{snapshot.captured && <When at={snapshot.captured} />}</Entry>
        <Entry name={texts.expires}>{snapshot.expires && <When at={snapshot.expires} />}</Entry>
        <Entry name={texts.took}>{snapshot.last_duration_ms != null && took(snapshot.last_duration_ms / 1000)}</Entry>
        <Entry name={texts.directory}>{snapshot.directory && visible(snapshot.directory)}</Entry>
        <Entry name={texts.home}>{visible(snapshot.home)}</Entry>
        <Entry name={texts.variables}>{String(snapshot.variables)}</Entry>
        <Entry name={texts.uses}>{texts.usesOf(snapshot.hits, snapshot.captures, snapshot.failures)}</Entry>
        <Names name={texts.pathLost} names={snapshot.path_lost} />
        <Names name={texts.missing} names={snapshot.missing} />
        <Names name={texts.unanswered} names={snapshot.unanswered} />
        <Names name={texts.unwatched} names={snapshot.unwatched} />
        <Names name={texts.withheld} names={snapshot.withheld} />
      </dl>
      {!snapshot.complete && <p class="warning">{texts.incomplete}</p>}
      <details class="more">
        <summary>{texts.files(snapshot.files.length)}</summary>
        <pre tabIndex={0} dir="ltr">
          {visible(snapshot.files.join("\n"))}
        </pre>
      </details>
    </li>
  );
}

/** One entry of a list of facts. Without a value there is none. */
export function Entry({ name, children }: { name: string; children: ComponentChildren }): VNode | null {
  if (children === undefined || children === null || children === false || children === "") return null;
  return (
    <div>
      <dt>{name}</dt>
      <dd dir="auto">{children}</dd>
    </div>
  );
}

function Names({ name, names }: { name: string; names: string[] | undefined }): VNode {
  return <Entry name={name}>{names && names.length > 0 && visible(names.join(", "))}</Entry>;
}
