/** The applet of a session's context: a slug, parameters, and the address that opens it. */
import type { Schemas } from "./api";

export interface Applet {
  slug: string;
  /** `key=value` each. */
  parameters: string[];
  url: string;
}

/** Returns the applet of a context, if it has one. */
export function appletOf(context: Schemas["ContextView"] | null | undefined): Applet | undefined {
  const [slug, ...parameters] = context?.sets["applet"]?.map(({ value }) => value) ?? [];
  if (slug === undefined) return undefined;
  return { slug, parameters, url: context?.applet_url ?? "" };
}

/** Most parameters that are taken from an applet: a set has at most ten items. */
const MOST = 9;
/** Longest text of a parameter and of an address. */
const LONGEST = 2_000;

/**
 * Returns an applet after its message, or undefined if the message is none: `{"agentd": "applet"}` with `parameters`
 * (an object of texts) or `url`. The address stays on the origin from which the message came.
 */
export function told(applet: Applet, message: unknown, origin: string): Applet | undefined {
  if (typeof message !== "object" || message === null || (message as Record<string, unknown>)["agentd"] !== "applet")
    return undefined;
  const { parameters, url } = message as { parameters?: unknown; url?: unknown };
  const given = typeof parameters === "object" && parameters !== null ? Object.entries(parameters) : undefined;
  const pairs = given?.filter(
    ([key, value]) => /^[^=\s]{1,100}$/.test(key) && typeof value === "string" && !/[\r\n]/.test(value),
  );
  const next = pairs?.slice(0, MOST).map(([key, value]) => `${key}=${value as string}`.slice(0, LONGEST));
  return {
    slug: applet.slug,
    parameters: next ?? applet.parameters,
    url: address(url, origin, applet.url) ?? applet.url,
  };
}

function address(url: unknown, origin: string, base: string): string | undefined {
  if (typeof url !== "string" || url.length > LONGEST) return undefined;
  try {
    const parsed = new URL(url);
    const { pathname, search, hash } = parsed;
    // The frame can have another name of this machine than the address that the agent gave.
    return parsed.origin === origin ? new URL(`${pathname}${search}${hash}`, base).href : undefined;
  } catch {
    return undefined;
  }
}

/** Returns whether two applets are the same with the same parameters. */
export function isSame(one: Applet | undefined, other: Applet | undefined): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}
