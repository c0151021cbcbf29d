/** The agent of a new session, with its mode, its model and its other options. */
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { Schemas, SessionBrief } from "../../core/api";
import type { Host } from "../../core/login";
import { catalogue, options } from "../../core/requests";
import { visible } from "../../core/text";
import { create } from "../../texts";
import { Combobox, fitting, type Proposal } from "./combobox";
import { Choice, Help, type Form } from "./fields";

type Agent = Schemas["AgentState"];
type Option = Schemas["OptionView"];

/** The options of an agent, and the session that offers them. */
export interface Offer {
  session: SessionBrief;
  options: Option[];
}

/** Returns the configured agents. */
export function useAgents(host: Host): Agent[] {
  const [agents, setAgents] = useState<Agent[]>([]);
  useEffect(() => {
    let current = true;
    setAgents([]);
    catalogue(host.base).then(
      ({ agents: all }) => current && setAgents(all.filter(({ configured }) => configured)),
      // The default agent can be chosen without the list.
      () => undefined,
    );
    return () => {
      current = false;
    };
  }, [host]);
  return agents;
}

/** Options of an agent: undefined until they are known, and `none` if no session of the agent runs. */
export type MaybeOffer = Offer | "none" | undefined;

/** Returns the options of a running session of an agent. The endpoint knows the options of running agents only. */
export function useOffer(host: Host, agent: string | undefined): MaybeOffer {
  const [offer, setOffer] = useState<MaybeOffer>();
  const running = [...host.sessions.all.value.values()].reverse();
  const session = running.find((brief) => brief.agent === agent && (brief.phase === "idle" || brief.phase === "busy"));
  const id = session?.id;
  useEffect(() => {
    let current = true;
    setOffer(session === undefined && agent !== undefined ? "none" : undefined);
    if (session !== undefined) {
      options(host.base, session.id).then(
        (view) => current && setOffer({ session, options: view.options }),
        // Without the options any value can be typed.
        () => current && setOffer("none"),
      );
    }
    return () => {
      current = false;
    };
  }, [host, agent, id]);
  return offer;
}

interface Props {
  form: Form;
  agents: Agent[];
  offer: MaybeOffer;
}

/** The fields of the agent, its mode and its model. */
export function AgentFields({ form, agents, offer }: Props): VNode {
  const ofDefault = agents.find((agent) => agent.default === true)?.name;
  const first = agents.find(({ name }) => name === ofDefault);
  const { agent } = form.draft;
  const others = agents.filter(({ name }) => name !== ofDefault);
  // A stored draft can name an agent that has left the configuration. The refusal then names the agents.
  const isListed = agent === "" || others.some(({ name }) => name === agent);
  return (
    <div class="field">
      <div class="row">
        <Choice
          form={form}
          name="agent"
          label={create.agent}
          choices={[
            ["", `${create.agentDefault(ofDefault)}${first === undefined ? "" : remark(first)}`],
            ...others.map((other) => [other.name, `${other.name}${remark(other)}`] as const),
            ...(isListed ? [] : [[agent, agent] as const]),
          ]}
        />
        <OfferField form={form} name="mode" label={create.mode} offer={offer} />
        <OfferField form={form} name="model" label={create.model} offer={offer} />
      </div>
      <Help id={`${form.ids}-offer`}>{offer !== undefined && visible(helpOf(offer))}</Help>
    </div>
  );
}

const helpOf = (offer: Offer | "none"): string =>
  offer === "none" ? create.notOffered : create.offered(offer.session.name ?? offer.session.id);

/** Returns what hinders an agent, in parentheses. */
function remark({ login, program }: Agent): string {
  const states = create.agentStates;
  const isOut = login === "missing" || login === "refused";
  const words = program == null ? states.absent : isOut ? states[login] : undefined;
  return words === undefined ? "" : ` (${words})`;
}

const optionsOf = (offer: MaybeOffer): Option[] => (typeof offer === "object" ? offer.options : []);

/** Returns the option for a mode or a model, by its category or else by its id. */
function offered(offer: MaybeOffer, name: "mode" | "model"): Option | undefined {
  const all = optionsOf(offer);
  return all.find(({ category }) => category === name) ?? all.find(({ id }) => id === name);
}

interface OfferProps {
  form: Form;
  name: "mode" | "model";
  label: string;
  offer: MaybeOffer;
}

function OfferField({ form: { blamed, change, draft, ids }, name, label, offer }: OfferProps): VNode {
  return (
    <Combobox
      id={`${ids}-${name}`}
      label={label}
      value={draft[name]}
      placeholder={create.asConfigured}
      change={(value) => change({ [name]: value })}
      proposals={fitting(values(offered(offer, name)), draft[name])}
      invalid={blamed === name}
      describedBy={`${ids}-offer-help`}
    />
  );
}

/** Fields for the options that have no field of their own. */
export function OtherOptions({ form, offer }: { form: Form; offer: MaybeOffer }): VNode {
  const {
    draft: { offered: chosen },
    change,
    ids,
  } = form;
  const own = new Set([offered(offer, "mode"), offered(offer, "model")]);
  const others = optionsOf(offer).filter((option) => !own.has(option));
  return (
    <>
      {others.map((option) => (
        <Combobox
          key={option.id}
          id={`${ids}-option-${option.id}`}
          label={visible(option.name)}
          value={chosen[option.id] ?? ""}
          placeholder={create.asConfigured}
          change={(value) => change({ offered: { ...chosen, [option.id]: value } })}
          proposals={fitting(values(option), chosen[option.id] ?? "")}
          describedBy={`${ids}-offer-help`}
        />
      ))}
    </>
  );
}

const values = (option: Option | undefined): Proposal[] =>
  (option?.values ?? []).map(({ value, name }) => ({ value, name }));
