/** Requests of the form for new sessions and of the panels that explain a session. */
import { call, Refused, session, type Base, type PromptPart, type Schemas, type SessionView } from "./api";
import { durations, type Durations } from "./durations";
import { send } from "./key";

/** Moments whose environments the endpoint compares. */
export type EnvironmentMoment = Schemas["EnvironmentMoment"];

/** Terms of a launch whose prerequisites are not met. */
export type Terms = "refuse" | "wait" | "force" | "degraded";

/** Time limit of a wait for prerequisites, in the syntax of the query. */
export const LONGEST_WAIT = "8h";

/** What a new session needs besides its specification. */
export interface Creation {
  spec: Schemas["SessionSpecInput"];
  terms: Terms;
  title: string;
  parts: PromptPart[];
}

/** A created session, with the problem of a step that failed after the creation. */
export interface Created {
  view: SessionView;
  left?: { step: "title" | "prompt"; refused: Refused };
}

/** Returns a path with its query. Keys without a value are left out. */
export function query(path: `/v1/${string}`, keys: Record<string, string | undefined>): `/v1/${string}` {
  const words = Object.entries(keys).filter(([, value]) => value !== undefined) as [string, string][];
  return words.length === 0 ? path : `${path}?${new URLSearchParams(words).toString()}`;
}

const TERMS: Record<Terms, Record<string, string>> = {
  refuse: {},
  wait: { wait_for_prerequisites: LONGEST_WAIT },
  force: { force: "true" },
  degraded: { degraded: "true" },
};

/**
 * Creates a session, sets its title, and sends a prompt with files.
 *
 * A specification has no place for files, so a prompt with files follows the creation, as with `agentctl new`. The same
 * key makes repetitions harmless.
 */
export async function create(base: Base, { spec, terms, title, parts }: Creation, key: string): Promise<Created> {
  const { initial_prompt: prompt, ...bare } = spec;
  const body = parts.length === 0 ? spec : bare;
  const path = query("/v1/sessions", TERMS[terms]);
  const view = await call<SessionView>(base, "post", path, body, { headers: { "idempotency-key": key } });
  let step: "title" | "prompt" = "title";
  try {
    if (title !== "") await call(base, "put", session(view.id, "/title"), { title });
    step = "prompt";
    if (parts.length > 0) {
      const request = { prompt: prompt ?? "", parts };
      await call(base, "post", session(view.id, "/prompt"), request, { headers: { "idempotency-key": `${key}-p` } });
    }
  } catch (error) {
    if (error instanceof Refused) return { view, left: { step, refused: error } };
    throw error;
  }
  return { view };
}

/** Returns the configured and the known agents, with the state of their logins. */
export const catalogue = (base: Base): Promise<Schemas["Catalogue"]> => call(base, "get", "/v1/catalogue");

/** Returns the configured places. */
export const places = (base: Base): Promise<Schemas["PlaceList"]> => call(base, "get", "/v1/places");

/** Returns the options that the agent of a running session offers. */
export const options = (base: Base, id: string): Promise<Schemas["OptionsView"]> =>
  call(base, "get", session(id, "/options"));

/** Returns the directories whose paths begin with `path`. Without a path they are those of the home. */
export const directories = (base: Base, path: string, signal?: AbortSignal): Promise<Schemas["DirectoryList"]> =>
  call(base, "get", query("/v1/directories", { path: path || undefined }), undefined, { signal });

/** Returns the scripts that a session in a directory would source. Fails if there is no such directory. */
export const scripts = (base: Base, directory: string, signal?: AbortSignal): Promise<Schemas["ScriptList"]> =>
  call(base, "get", query("/v1/scripts", { directory }), undefined, { signal });

/** Returns the schedules, whose sessions have directories. */
export const schedules = (base: Base): Promise<Schemas["ScheduleList"]> => call(base, "get", "/v1/schedules");

/** Returns the prerequisites of a session, or all of them. */
export const prerequisites = (base: Base, id?: string): Promise<Schemas["PrerequisiteList"]> =>
  call(base, "get", query("/v1/prerequisites", { session: id }));

/** Checks the prerequisites of a session now. */
export const checkPrerequisites = (base: Base, id: string): Promise<Schemas["PrerequisiteList"]> =>
  call(base, "post", session(id, "/prerequisites/check"));

/** Returns a session with its specification and its conditions. */
export const show = (base: Base, id: string): Promise<SessionView> => call(base, "get", session(id));

/** Returns an environment of a session. The endpoint never sends the value of a secret. */
export const environment = (
  base: Base,
  id: string,
  at: EnvironmentMoment,
  values: boolean,
): Promise<Schemas["EnvironmentView"]> =>
  call(base, "get", query(session(id, "/environment"), { at, values: values ? "true" : undefined }));

/** Compares two environments of a session. */
export const difference = (
  base: Base,
  id: string,
  [from, to]: readonly [EnvironmentMoment, EnvironmentMoment],
  values: boolean,
): Promise<Schemas["DifferenceView"]> =>
  call(base, "get", query(session(id, "/environment/diff"), { from, to, values: values ? "true" : undefined }));

/** Returns the warnings that a launch would report now. */
export const validation = (base: Base, id: string): Promise<Schemas["ValidationView"]> =>
  call(base, "get", session(id, "/validation"));

/** Writes the names of variables into the whitelist of the configuration, or shows the lines that this changes. */
export const keep = (base: Base, request: Schemas["KeepRequest"]): Promise<Schemas["KeepView"]> =>
  call(base, "post", "/v1/environment/keep", request);

/** Returns the snapshots of the login shell and of terminals. */
export const snapshots = (base: Base): Promise<Schemas["SnapshotList"]> => call(base, "get", "/v1/snapshots");

/** Runs the login shell now. */
export const refreshSnapshots = (base: Base): Promise<Schemas["SnapshotList"]> =>
  call(base, "post", "/v1/snapshots/refresh");

/** Returns the plugins with their states. */
export const plugins = (base: Base): Promise<Schemas["PluginList"]> => call(base, "get", "/v1/plugins");

/** Returns the durations of plugin calls from the metrics. Undefined if this connection does not offer metrics. */
export async function pluginDurations(base: Base): Promise<Map<string, Durations> | undefined> {
  const response = await send(`${base}/metrics`).catch(() => undefined);
  return response?.ok ? durations(await response.text()) : undefined;
}

/** Returns the newest recorded calls that concern a session, oldest first. */
export const audit = (base: Base, id: string, limit: number): Promise<Schemas["AuditList"]> =>
  call(base, "get", query("/v1/audit", { session: id, limit: String(limit) }));

/** Returns the findings of the daemon about itself. */
export const doctor = (base: Base): Promise<Schemas["DoctorView"]> => call(base, "get", "/v1/doctor");
