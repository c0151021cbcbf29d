/** The directory of a new session: proposals while somebody types, and what is wrong with it. */
import type { VNode } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";

import { Refused, type Schemas } from "../../core/api";
import { isListed, known, proposals, type Listing } from "../../core/directories";
import type { Host } from "../../core/login";
import { shellWord } from "../../core/remedy";
import { directories, schedules, scripts, snapshots } from "../../core/requests";
import { visible } from "../../core/text";
import { create } from "../../texts";
import { Command, Words } from "../copy";
import { Combobox } from "./combobox";
import { described, Help, type Form } from "./fields";

/** Milliseconds without a key after which the directory is examined. */
const PAUSE = 400;
/** Milliseconds without a key after which the typed path is completed. */
const COMPLETION_PAUSE = 120;

/** A directory's scripts, or why there is none. */
type Finding = { scripts: Schemas["ScriptView"][] } | { refused: Refused };

/** The field of the directory. */
export function Directory({ form, host }: { form: Form; host: Host }): VNode {
  const { draft, change, ids, blamed } = form;
  const { directory, workspace } = draft;
  const others = useOthers(host);
  const all = host.sessions.all.value;
  const candidates = useMemo(() => known(all.values(), others), [all, others]);
  const typed = directory.trim();
  const listing = useListing(host, workspace ? undefined : typed);
  const offered = workspace ? [] : proposals(candidates, typed, listing);
  const found = useFinding(host, workspace ? "" : typed);
  const [hasFocus, setFocus] = useState(false);
  // A path that proposals complete is no mistake while somebody types it.
  const isUnfinished = hasFocus && offered.some((path) => path !== typed && path.startsWith(typed));
  const finding = isUnfinished && found !== undefined && "refused" in found ? undefined : found;
  const id = `${ids}-directory`;
  return (
    <div class="field" onFocusIn={() => setFocus(true)} onFocusOut={() => setFocus(false)}>
      <Combobox
        id={id}
        label={create.directory}
        value={directory}
        change={(value) => change({ directory: value })}
        proposals={offered.map((value) => ({ value }))}
        invalid={blamed === "directory" || (finding !== undefined && "refused" in finding)}
        describedBy={described(`${id}-help`, `${id}-finding`)}
      />
      <Help id={id}>{workspace ? create.relativeHelp : create.directoryHelp}</Help>
      <div id={`${id}-finding`} role="status" class="finding">
        {finding !== undefined && <FindingView finding={finding} directory={typed} />}
      </div>
    </div>
  );
}

/** Returns directories that no session tells: those of schedules, and the homes of login shells. */
function useOthers(host: Host): string[] {
  const [others, setOthers] = useState<string[]>([]);
  useEffect(() => {
    let current = true;
    // Proposals are a help. Without an answer there are fewer of them.
    const planned = schedules(host.base).then(({ schedules: all }) => all.map(({ spec }) => spec.session?.directory));
    const homes = snapshots(host.base).then(({ login_shells: all }) => all.flatMap((one) => [one.directory, one.home]));
    void Promise.allSettled([planned, homes]).then((results) => {
      const found = results.flatMap((result) => (result.status === "fulfilled" ? result.value : []));
      if (current) setOthers(found.filter((one) => one != null));
    });
    return () => {
      current = false;
    };
  }, [host]);
  return others;
}

/** Lists the directories that complete a path. An older listing stays until the next answer. */
function useListing(host: Host, typed: string | undefined): Listing | undefined {
  const [listing, setListing] = useState<Listing>();
  useEffect(() => setListing(undefined), [host]);
  useEffect(() => {
    if (typed === undefined || !isListed(typed)) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      directories(host.base, typed, abort.signal).then(
        (list) => setListing({ path: typed, directories: list.directories }),
        // Without an answer the known directories remain. The examination of the directory says why.
        () => abort.signal.aborted || setListing(undefined),
      );
    }, COMPLETION_PAUSE);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [host, typed]);
  return listing;
}

/** Examines a directory when nobody has typed for a moment. */
function useFinding(host: Host, directory: string): Finding | undefined {
  const [finding, setFinding] = useState<Finding>();
  useEffect(() => {
    setFinding(undefined);
    if (!directory.startsWith("/")) return undefined;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      scripts(host.base, directory, abort.signal).then(
        ({ scripts: found }) => setFinding({ scripts: found }),
        (error: unknown) => {
          if (!abort.signal.aborted && error instanceof Refused) setFinding({ refused: error });
        },
      );
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [host, directory]);
  return finding;
}

function FindingView({ finding, directory }: { finding: Finding; directory: string }): VNode | null {
  if ("refused" in finding) {
    const { detail, hint } = finding.refused.problem;
    return (
      <p class="mistake">
        <Words text={hint ? `${detail}; ${hint}` : detail} />
      </p>
    );
  }
  // The path of a file is answered with the file as a script. The creation refuses such a path.
  const waiting = finding.scripts.filter(({ path, state }) => state !== "approved" && path !== directory);
  return (
    <>
      {waiting.map(({ path, reason }) => (
        <p key={path} class="warning">
          {visible(create.unapproved(path))} <Command text={`agentctl env allow ${shellWord(directory)}`} />
          {reason && <> {visible(reason)}</>}
        </p>
      ))}
    </>
  );
}
