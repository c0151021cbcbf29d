/** Calls of the control endpoint, with the types of its OpenAPI description. */
import { signal } from "@preact/signals";

import { texts } from "../texts";
import type { components, paths } from "../api";
import { send } from "./key";

export type Schemas = components["schemas"];
export type SessionView = Schemas["SessionView"];
export type SessionBrief = Schemas["SessionBrief"];
export type Problem = Schemas["Problem"];
export type Phase = Schemas["Phase"];

/** An answer with an error: the problem document of the endpoint, or one made here if there was no answer. */
export class Refused extends Error {
  constructor(readonly problem: Pick<Problem, "code" | "detail" | "hint"> & { status: number }) {
    super(problem.detail);
  }
}

/** A part of a prompt. The description's types do not say that `type` tells the kinds apart. */
export type PromptPart =
  | (Schemas["Media"] & { type: "image" | "audio" })
  | { type: "resource"; resource: Schemas["EmbeddedResource"] }
  | (Schemas["Link"] & { type: "resource_link" });

/** Code of the refusal after the cookie has expired. */
export const SIGNED_OUT = "ui.signed_out";

/** The refusal that ended the page's own session, if there was one. */
export const signedOut = signal<Refused["problem"] | undefined>(undefined);

/** Returns the words of an error for a person: its detail and its hint. */
export function words(error: unknown): string {
  if (!(error instanceof Refused)) return error instanceof Error ? error.message : String(error);
  const { detail, hint } = error.problem;
  return hint ? `${detail}. ${hint.charAt(0).toUpperCase()}${hint.slice(1)}.` : detail;
}

type Method = "get" | "post" | "put" | "patch" | "delete";

/** Beginning of all paths: `/host/NAME` of a daemon, or empty for the server of the page. */
export type Base = string;

/** Sends one request. Fails with `Refused`, also if there is no connection. */
export async function call<T>(
  base: Base,
  method: Method,
  path: keyof paths | `/v1/${string}` | `/ui/${string}`,
  body?: unknown,
  init: RequestInit = {},
): Promise<T> {
  let response: Response;
  try {
    response = await send(base + path, {
      ...init,
      method: method.toUpperCase(),
      headers: {
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(init.headers as Record<string, string>),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Refused({ code: "internal", status: 0, detail: texts.connection.lost });
  }
  return (await answer(response)) as T;
}

/** Returns the document of an answer, or fails with its problem. */
export async function answer(response: Response): Promise<unknown> {
  const text = await response.text();
  if (response.ok) return text === "" ? undefined : JSON.parse(text);
  let problem: Refused["problem"];
  try {
    problem = JSON.parse(text) as Problem;
  } catch {
    problem = { code: "internal", status: response.status, detail: text.slice(0, 500) };
  }
  if ((problem.code as string) === SIGNED_OUT) signedOut.value = problem;
  throw new Refused(problem);
}

export const session = (id: string, rest = ""): `/v1/${string}` => `/v1/sessions/${encodeURIComponent(id)}${rest}`;
