/** The options that a running agent offers: mode, model and others. */
import type { Signal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { call, session as path, type Schemas, type SessionView } from "../core/api";
import type { Host } from "../core/login";
import { short } from "../core/text";
import { texts } from "../texts";

interface Props {
  host: Host;
  id: string;
  session: SessionView | undefined;
  problem: Signal<unknown>;
}

/** A field for each option with a list of values. A change is a change of the session's specification. */
export function Options({ host, id, session, problem }: Props): VNode | null {
  const [options, setOptions] = useState<Schemas["OptionView"][]>([]);
  const { mode, model, phase, launches } = session?.status ?? {};
  const [settled, setSettled] = useState(0);
  // The number of changes, and of those without an answer. An answer from before a change must not undo its field.
  const changes = useRef({ all: 0, open: 0 });
  useEffect(() => {
    if (phase !== "idle" && phase !== "busy") return;
    const abort = new AbortController();
    const before = changes.current.all;
    call<Schemas["OptionsView"]>(host.base, "get", path(id, "/options"), undefined, { signal: abort.signal }).then(
      (view) => {
        if (changes.current.open === 0 && changes.current.all === before) setOptions(view.options);
      },
      () => undefined,
    );
    return () => abort.abort();
  }, [host, id, mode, model, phase, launches, session?.generation, settled]);
  const offered = options.filter(({ values }) => (values?.length ?? 0) > 1);
  if (offered.length === 0) return null;
  const set = (option: string, value: string) => {
    problem.value = undefined;
    const patch = option === "mode" || option === "model" ? { [option]: value } : { options: { [option]: value } };
    setOptions((before) => before.map((other) => (other.id === option ? { ...other, value } : other)));
    changes.current.all += 1;
    changes.current.open += 1;
    call(host.base, "patch", path(id), patch)
      .catch((error: unknown) => (problem.value = error))
      .finally(() => {
        changes.current.open -= 1;
        setSettled((count) => count + 1);
      });
  };
  return (
    <fieldset class="options" aria-label={texts.input.options}>
      {offered.map((option) => (
        <label key={option.id}>
          <span>
            <bdi>{short(option.name)}</bdi>
          </span>
          <select value={option.value ?? ""} onChange={(event) => set(option.id, event.currentTarget.value)}>
            {option.values!.map(({ value, name }) => (
              <option key={value} value={value}>
                {short(name)}
              </option>
            ))}
          </select>
        </label>
      ))}
    </fieldset>
  );
}
