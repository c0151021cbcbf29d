/** Durations of plugin calls, from the daemon's metrics in the format of OpenMetrics. */

/** Durations of the calls of one plugin, in seconds. */
export interface Durations {
  calls: number;
  mean: number;
  /** A bound below which 95 % of the calls lie: the limit of a bucket. Infinite if the slowest bucket has more. */
  most: number;
}

const METRIC = "agentd_plugin_call_duration_seconds";
const LINE = /^agentd_plugin_call_duration_seconds_(sum|count|bucket)\{([^}]*)\} (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const SHARE = 0.95;

/** Returns the durations by the plugin's name. */
export function durations(text: string): Map<string, Durations> {
  const found = new Map<string, { sum: number; count: number; buckets: [number, number][] }>();
  for (const line of text.split("\n")) {
    if (!line.startsWith(METRIC)) continue;
    const [, kind, words, number] = LINE.exec(line) ?? [];
    if (words === undefined) continue;
    const labels = new Map(Array.from(words.matchAll(LABEL), ([, key, value]) => [key, value] as const));
    const name = labels.get("plugin");
    if (name === undefined) continue;
    const entry = found.get(name) ?? { sum: 0, count: 0, buckets: [] };
    found.set(name, entry);
    if (kind === "sum") entry.sum = Number(number);
    else if (kind === "count") entry.count = Number(number);
    else entry.buckets.push([bound(labels.get("le")), Number(number)]);
  }
  const used = [...found].filter(([, { count }]) => count > 0);
  return new Map(
    used.map(([name, { sum, count, buckets }]) => {
      const [most] = buckets.sort(([a], [b]) => a - b).find(([, below]) => below >= count * SHARE) ?? [Infinity];
      return [name, { calls: count, mean: sum / count, most }];
    }),
  );
}

const bound = (text: string | undefined): number => (text === undefined || text === "+Inf" ? Infinity : Number(text));
