/** The plugins with their states, their calls, and the durations of these. */
import type { VNode } from "preact";

import type { Schemas } from "../../core/api";
import type { Durations } from "../../core/durations";
import { environment, pluginDurations, plugins, prerequisites } from "../../core/requests";
import { visible } from "../../core/text";
import { why } from "../../texts";
import { Words } from "../copy";
import { Action, Content, useLoad, type Place } from "./panel";
import { Entry } from "./snapshot";
import { took, When } from "./time";

type Plugin = Schemas["PluginView"];

const texts = why.plugins;

/** Content of the panel of the plugins. */
export function Plugins({ host, id }: Place): VNode {
  const { base } = host;
  // A session without an environment has no providers, and the plugins are shown all the same.
  const last = () => environment(base, id, "last", false).catch(() => undefined);
  const load = () => Promise.all([plugins(base), pluginDurations(base), prerequisites(base), last()]);
  const of = useLoad(load, "");
  return (
    <>
      <p>
        <Action busy={of.busy} run={() => of.load()}>
          {why.reload}
        </Action>
      </p>
      <Content of={of}>
        {([{ plugins: all }, durations, { prerequisites: checks }, view]) => {
          const providers = new Set(view && [...view.variables, ...view.dropped].map(({ provider }) => provider));
          return (
            <>
              {all.length === 0 && <p>{texts.none}</p>}
              {durations === undefined && all.length > 0 && <p class="aside">{texts.noDurations}</p>}
              <ul class="entries">
                {all.map((plugin) => (
                  <Row
                    key={plugin.name}
                    plugin={plugin}
                    durations={durations?.get(plugin.name)}
                    checks={checks.filter((check) => check.plugin === plugin.name)}
                    mine={plugin.used_by.some((step) => providers.has(step))}
                  />
                ))}
              </ul>
            </>
          );
        }}
      </Content>
    </>
  );
}

interface Props {
  plugin: Plugin;
  durations: Durations | undefined;
  /** The prerequisites that the plugin checks. */
  checks: Schemas["PrerequisiteView"][];
  /** Whether the plugin set or dropped a variable of the session. */
  mine: boolean;
}

function Row({ plugin, durations, checks, mine }: Props): VNode {
  const { calls, failures, last_failure: failure, name, problem, state, summary, version } = plugin;
  const bad = problem != null || state === "failed" || state === "suspended";
  return (
    <li data-plugin={name} data-state={state} class={bad ? "look" : "fine"}>
      <p>
        <strong>{visible(name)}</strong> {version && <span class="aside">{visible(version)}</span>}{" "}
        <span class={`outcome ${bad ? "fail" : "pass"}`}>{texts.states[state]}</span>{" "}
        {mine && <span class="aside">{texts.mine}</span>}
      </p>
      {summary && <p dir="auto">{visible(summary)}</p>}
      {problem && (
        <p class="warning">
          <Words text={problem.detail} />
        </p>
      )}
      {problem?.hint && (
        <p class="advice">
          <strong>{why.hint}:</strong> <Words text={problem.hint} />
        </p>
      )}
      <p class="durations">
        {texts.calls(calls, failures)}
        {durations && (
          <>
            , {texts.mean(took(durations.mean))}, {mostly(durations)}
          </>
        )}
        {checks.map(
          ({ name: check, report }) =>
            report && <span key={check}>, {texts.check(visible(check), took(report.took_ms / 1000))}</span>,
        )}
      </p>
      <dl class="fact-list">
        <Entry name={texts.lastFailure}>
          {failure && (
            <>
              <Words text={failure.message} /> (<When at={failure.at} />)
            </>
          )}
        </Entry>
        <Entry name={texts.usedBy}>{visible(plugin.used_by.join(", "))}</Entry>
        <Entry name={texts.source}>{visible(plugin.declared_in ?? plugin.source)}</Entry>
        <Entry name={texts.grant}>{visible(granted(plugin.grant))}</Entry>
        <Entry name={texts.narrowed}>
          {visible((plugin.narrowed ?? []).map(({ capability, pattern }) => `${capability} ${pattern}`).join(", "))}
        </Entry>
      </dl>
    </li>
  );
}

const mostly = ({ most }: Durations): string => (most === Infinity ? texts.slow : texts.most(took(most)));

const granted = (grant: Plugin["grant"]): string =>
  Object.entries(grant)
    .map(([capability, patterns]) => [capability, patterns.join(" ")].join(" ").trim())
    .join(", ");
