/** The variables that a provider dropped, with the configuration line that keeps each. */
import type { VNode } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { Refused, type Schemas, type SessionView } from "../../core/api";
import { environment, keep } from "../../core/requests";
import { remedy, shellWord } from "../../core/remedy";
import { visible } from "../../core/text";
import { why } from "../../texts";
import { Command } from "../copy";
import { matches } from "./environment";
import { Action, Content, refusal, useEvents, useLoad, type Place } from "./panel";
import { Mistakes, ProblemView } from "../problem";

type DroppedView = Schemas["DroppedView"];
type Scope = "all" | "agent" | "directory";

const texts = why.dropped;

interface Props extends Place {
  view: SessionView | undefined;
}

/** Content of the panel of the dropped variables. */
export function Dropped({ view, ...place }: Props): VNode {
  const [search, setSearch] = useState("");
  const of = useLoad(() => environment(place.host.base, place.id, "last", false), "");
  useEvents(
    place,
    (kind) => kind === "environment.built",
    () => of.load(),
  );
  return (
    <>
      <label class="search">
        {texts.search}
        <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
      </label>
      <Content of={of}>
        {({ dropped }) => {
          const shown = dropped.filter(({ name, provider, reason, origin }) =>
            matches(search, name, provider, reason, origin),
          );
          return (
            <>
              <p role="status">{texts.shown(shown.length, dropped.length)}</p>
              <ul class="entries">
                {shown.map((one) => (
                  <Row key={one.name} dropped={one} place={place} view={view} />
                ))}
              </ul>
            </>
          );
        }}
      </Content>
    </>
  );
}

function Row({ dropped, place, view }: { dropped: DroppedView; place: Place; view: SessionView | undefined }): VNode {
  const way = remedy(dropped);
  return (
    <li data-dropped={dropped.name}>
      <p>
        <strong>
          <code dir="ltr">{visible(dropped.name)}</code>
        </strong>{" "}
        <span class="aside">{visible(texts.by(dropped.provider, dropped.step))}</span>
      </p>
      {dropped.reason && <p dir="auto">{visible(dropped.reason)}</p>}
      {way.kind === "edit" && <p>{visible(texts.edit(way.file))}</p>}
      {way.kind === "settings" && <p>{visible(texts.settings(dropped.provider))}</p>}
      {way.kind === "keep" && <Keep name={dropped.name} command={way.command} place={place} view={view} />}
    </li>
  );
}

interface KeepProps {
  name: string;
  command: string;
  place: Place;
  view: SessionView | undefined;
}

/** The line that keeps a variable, and its writing. A read-only page has the command alone. */
function Keep({ name, command, place, view }: KeepProps): VNode {
  const [scope, setScope] = useState<Scope>("all");
  const [shown, setShown] = useState<Schemas["KeepView"]>();
  const [refused, setRefused] = useState<Refused>();
  const [busy, setBusy] = useState(false);
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // The pressed button is gone, and the focus must not be lost with it.
    if (shown !== undefined && !box.current?.contains(document.activeElement)) box.current?.focus();
  }, [shown]);
  if (place.readOnly)
    return (
      <p>
        {texts.command}: <Command text={command} />
      </p>
    );
  const ask = async (wanted: Scope, dryRun: boolean) => {
    setBusy(true);
    setRefused(undefined);
    const { agent, directory } = view?.spec ?? {};
    const limit = { ...(wanted === "agent" && { agent }), ...(wanted === "directory" && { directory }) };
    try {
      setShown(await keep(place.host.base, { names: [name], dry_run: dryRun, ...limit }));
    } catch (error) {
      setRefused(refusal(error));
    }
    setBusy(false);
  };
  const choose = (wanted: Scope) => {
    setScope(wanted);
    void ask(wanted, true);
  };
  if (shown === undefined) {
    return (
      <>
        <Action busy={busy} label={texts.showFor(name)} run={() => void ask(scope, true)}>
          {texts.show}
        </Action>
        <ProblemView of={refused} />
        {refused && (
          <p>
            {texts.command}: <Command text={command} />
          </p>
        )}
      </>
    );
  }
  return (
    <div class="keep" ref={box} tabIndex={-1}>
      <p class="controls">
        <label for={id}>{texts.scope}</label>
        <select id={id} value={scope} onChange={(event) => choose(event.currentTarget.value as Scope)}>
          <option value="all">{texts.scopes.all}</option>
          {view?.spec.agent && <option value="agent">{texts.scopes.agent(visible(view.spec.agent))}</option>}
          {view?.spec.directory && (
            <option value="directory">{visible(texts.scopes.directory(view.spec.directory))}</option>
          )}
        </select>
      </p>
      {refused ? <ProblemView of={refused} /> : <Lines view={shown} />}
      <p>
        {texts.command}: <Command text={`${command}${option(scope, view)}`} />
      </p>
      {refused === undefined && shown.dry_run && shown.lines.length > 0 && (
        <Action busy={busy} run={() => void ask(scope, false)}>
          {texts.write}
        </Action>
      )}
    </div>
  );
}

/** Returns the option of `agentctl env keep` for a scope. */
function option(scope: Scope, view: SessionView | undefined): string {
  if (scope === "agent") return ` --agent ${shellWord(view?.spec.agent ?? "")}`;
  return scope === "directory" ? ` --directory ${shellWord(view?.spec.directory ?? "")}` : "";
}

/** The removed and added lines with their file, as `agentctl env keep` prints them. */
function Lines({ view }: { view: Schemas["KeepView"] }): VNode {
  const [first] = view.lines;
  const failed = view.mistakes ?? [];
  return (
    <>
      {first === undefined ? (
        <p>{texts.already(visible(view.already.join(", ")))}</p>
      ) : (
        <pre class="lines" tabIndex={0} dir="ltr">
          {visible(`${view.file}:${first.line}`)}
          {"\n"}
          {view.lines.map(({ added, line, text }) => (
            <span key={`${added} ${line}`} class={added ? "added" : "removed"}>
              {added ? "+" : "-"}
              {visible(text)}
              {"\n"}
            </span>
          ))}
        </pre>
      )}
      {view.added.length > 0 && view.secrets && view.secrets.length > 0 && (
        <p class="warning">{visible(texts.secret(view.secrets.join(", ")))}</p>
      )}
      {!view.dry_run && view.added.length > 0 && (
        <div role="status">
          {failed.length > 0 && <Mistakes mistakes={failed} />}
          <p>{failed.some(({ consequence }) => consequence !== "left-out") ? texts.notInForce : texts.written}</p>
        </div>
      )}
    </>
  );
}
