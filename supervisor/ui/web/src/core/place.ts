/** The place of a session: another machine, a job of a cluster or a container on which its agent runs. */
import type { Schemas } from "./api";

type PlaceView = Schemas["PlaceView"];

/** A fact about a place: the key of its label, and its value. */
export type Fact = readonly ["engine" | "job" | "host" | "user" | "home" | "system", string];

/** Returns the engine's words about the state: its reason and its message. */
export const engineWords = ({ reason, message }: PlaceView): string => [reason, message].filter(Boolean).join(", ");

/** Returns the words of the head: the name of the place, and the host or the state. */
export function placeWords(place: PlaceView, states: Record<string, string>): string {
  const { name, state, host, job } = place;
  if (state === "running") return host ? `${name} (${host.host})` : name;
  const words = [states[state] ?? state, job != null && state === "queued" && `job ${job}`, engineWords(place)];
  return `${name} (${words.filter(Boolean).join(", ")})`;
}

/** Returns the facts of a place that are known. The host is known as soon as the agent was started there. */
export function placeFacts(place: PlaceView): Fact[] {
  const { host, job } = place;
  const all: [Fact[0], string | null | undefined][] = [
    ["engine", engineWords(place)],
    ["job", job],
    ["host", host?.host],
    ["user", host && `${host.user} (${host.uid})`],
    ["home", host?.home],
    ["system", host && `${host.system}, ${host.architecture}`],
  ];
  return all.filter((fact): fact is [Fact[0], string] => Boolean(fact[1]));
}
