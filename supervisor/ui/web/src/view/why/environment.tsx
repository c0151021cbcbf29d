/** The environment of a session: each variable with the steps that set it, its scripts, and warnings. */
import type { VNode } from "preact";
import { useId, useState } from "preact/hooks";

import type { Schemas } from "../../core/api";
import { environment, validation, type EnvironmentMoment } from "../../core/requests";
import { visible } from "../../core/text";
import { why } from "../../texts";
import { Words } from "../copy";
import { Action, Content, useEvents, useLoad, type Place } from "./panel";
import { Parts } from "./state";
import { took, When } from "./time";

type View = Schemas["EnvironmentView"];
type Variable = Schemas["VariableView"];
type Step = Schemas["StepView"];

const texts = why.environment;
/** Number of variables on the screen. An environment can have thousands, and each row costs time. */
const SHOWN = 300;
const MOMENTS: EnvironmentMoment[] = ["created", "last", "now"];

/** Content of the panel of the environment. */
export function Environment(place: Place): VNode {
  const [at, setAt] = useState<EnvironmentMoment>("last");
  const [values, setValues] = useState(false);
  const [search, setSearch] = useState("");
  const ids = useId();
  const of = useLoad(() => environment(place.host.base, place.id, at, values), `${at} ${values}`);
  // An environment of now runs scripts, so only a person asks for it again.
  useEvents(
    place,
    (kind) => kind.startsWith("environment."),
    () => at !== "now" && of.load(),
  );
  return (
    <>
      <div class="controls">
        <label for={`${ids}at`}>{texts.at}</label>
        <select id={`${ids}at`} value={at} onChange={(event) => setAt(event.currentTarget.value as EnvironmentMoment)}>
          {MOMENTS.map((moment) => (
            <option key={moment} value={moment}>
              {texts.moments[moment]}
            </option>
          ))}
        </select>
        <label class="check">
          <input type="checkbox" checked={values} onChange={(event) => setValues(event.currentTarget.checked)} />
          {why.values}
        </label>
        <Action busy={of.busy} run={() => of.load()}>
          {why.reload}
        </Action>
      </div>
      <label class="search">
        {texts.search}
        <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
      </label>
      <Content of={of}>{(view) => <Variables view={view} search={search} />}</Content>
      <h3>{texts.warnings}</h3>
      <Warnings {...place} />
    </>
  );
}

/** Returns whether every word is in the variable's name, provider, origin, or value. */
export function matches(search: string, ...where: (string | null | undefined)[]): boolean {
  const text = where.join("\n").toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function Variables({ view, search }: { view: View; search: string }): VNode {
  const [most, setMost] = useState(SHOWN);
  const shown = view.variables.filter((variable) =>
    matches(search, variable.name, variable.provider, variable.origin, plain(variable)),
  );
  return (
    <>
      <p class="aside">
        {texts.built(view.launch)} <When at={view.captured} />{" "}
        {view.duration_us != null && texts.took(took(view.duration_us / 1e6))}
      </p>
      {view.without && view.without.length > 0 && (
        <>
          <p>{texts.without}</p>
          <Parts parts={view.without} />
        </>
      )}
      {view.missing?.map(({ name }) => (
        <p key={name} class="warning">
          {texts.missing(visible(name))}
        </p>
      ))}
      <p role="status">{texts.shown(shown.length, view.variables.length)}</p>
      <ul class="variables">
        {shown.slice(0, most).map((variable) => (
          <Row key={variable.name} variable={variable} />
        ))}
      </ul>
      {shown.length > most && (
        <button type="button" onClick={() => setMost(most + SHOWN)}>
          {texts.more(shown.length - most)}
        </button>
      )}
      <Scripts scripts={view.scripts ?? []} />
    </>
  );
}

/** One variable. Its steps are built when somebody opens it. */
function Row({ variable }: { variable: Variable }): VNode {
  const [open, setOpen] = useState(false);
  const value = plain(variable);
  return (
    <li data-variable={variable.name}>
      <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>
          <code class="name" dir="ltr">
            {visible(variable.name)}
          </code>
          <span class="provider">{visible(variable.provider)}</span>
          {value !== undefined && (
            <code class="value" dir="ltr">
              {visible(value)}
            </code>
          )}
        </summary>
        {open && <Explanation variable={variable} />}
      </details>
    </li>
  );
}

function Explanation({ variable }: { variable: Variable }): VNode {
  const { name, named_secret, secret, history } = variable;
  // The last step of the history is the variable's own, without its value.
  const earlier = (history ?? []).slice(0, -1).reverse();
  return (
    <div class="explanation">
      <StepFacts step={variable} secret={secret} named={named_secret ?? undefined} />
      {earlier.map((step, index) => (
        <div key={`${name} ${index}`} class="before">
          <p>
            <strong>{texts.before}</strong>
          </p>
          <StepFacts step={step} secret={secret} />
        </div>
      ))}
    </div>
  );
}

/** The effect of one step on a variable. */
export function StepFacts({ step, secret, named }: { step: Step | Variable; secret: boolean; named?: string }): VNode {
  const removed = "removed" in step && step.removed === true;
  const reason = "reason" in step ? step.reason : undefined;
  const value = text(step.value);
  return (
    <dl class="fact-list">
      <div>
        <dt>{removed ? texts.removedBy : texts.setBy}</dt>
        <dd>
          {visible(texts.step(step.provider, step.step))}
          {reason && <>: {visible(reason)}</>}
        </dd>
      </div>
      {step.origin && (
        <div>
          <dt>{texts.origin}</dt>
          <dd>
            <code dir="ltr">{visible(step.origin)}</code>
          </dd>
        </div>
      )}
      {secret && (
        <div>
          <dt>{texts.value}</dt>
          <dd>{named === undefined ? why.secret : texts.named(named)}</dd>
        </div>
      )}
      {!secret && !removed && value !== undefined && (
        <div>
          <dt>{texts.value}</dt>
          <dd>
            <code class="whole" dir="ltr">
              {visible(value)}
            </code>
          </dd>
        </div>
      )}
      {step.file && (
        <div>
          <dt>{texts.file}</dt>
          <dd>{texts.fileSize(step.file.size, step.file.digest)}</dd>
        </div>
      )}
      {step.expires_at && (
        <div>
          <dt>{texts.expires}</dt>
          <dd>
            <When at={step.expires_at} />
          </dd>
        </div>
      )}
    </dl>
  );
}

/** Returns the value of a variable as far as it may be shown. */
function plain(variable: Variable): string | undefined {
  return variable.secret ? undefined : text(variable.value);
}

/** Returns a value as text. Bytes that are no text arrive as an object, and are shown in that form. */
export function text(value: Schemas["ByteString"] | null | undefined): string | undefined {
  if (value === null || value === undefined) return undefined;
  return typeof value === "string" ? value : JSON.stringify(value);
}

function Scripts({ scripts }: { scripts: Schemas["ScriptRun"][] }): VNode {
  return (
    <>
      <h3>{texts.scripts}</h3>
      {scripts.length === 0 && <p>{texts.noScripts}</p>}
      <ul class="entries">
        {scripts.map((run) => (
          <li key={run.path}>
            <p>
              <code dir="ltr">{visible(run.path)}</code>{" "}
              <span class={`outcome ${run.status ? "warn" : ""}`}>
                {run.status == null ? texts.scriptCached : texts.scriptStatus(run.status)}
              </span>
            </p>
            {run.warnings?.map((warning, index) => (
              <p key={index} class="warning">
                {visible(warning)}
              </p>
            ))}
            {run.stderr && run.stderr.length > 0 && <pre tabIndex={0}>{visible(run.stderr.join("\n"))}</pre>}
          </li>
        ))}
      </ul>
    </>
  );
}

function Warnings(place: Place): VNode {
  const of = useLoad(() => validation(place.host.base, place.id), "");
  useEvents(
    place,
    (kind) => kind === "environment.built",
    () => of.load(),
  );
  return (
    <Content of={of}>
      {({ warnings }) =>
        warnings.length === 0 ? (
          <p>{texts.noWarnings}</p>
        ) : (
          <ul class="entries">
            {warnings.map(({ reason, path, message }, index) => (
              <li key={index} class="look">
                <p>
                  <code>{visible(reason)}</code> <code dir="ltr">{visible(path)}</code>
                </p>
                <p>
                  <Words text={message} />
                </p>
              </li>
            ))}
          </ul>
        )
      }
    </Content>
  );
}
