/** The place on which the agent of a new session runs. */
import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { Schemas } from "../../core/api";
import type { Host } from "../../core/login";
import { places } from "../../core/requests";
import { create } from "../../texts";
import { Choice, type Form } from "./fields";

type Summary = Schemas["PlaceSummary"];

/** The choice of a place. It is shown if the configuration has one. */
export function Place({ form, host }: { form: Form; host: Host }): VNode | null {
  const [all, setAll] = useState<Summary[]>([]);
  useEffect(() => {
    let current = true;
    setAll([]);
    places(host.base).then(
      ({ places: listed }) => current && setAll(listed),
      // Without the list, the configuration decides the place.
      () => undefined,
    );
    return () => {
      current = false;
    };
  }, [host]);
  const { place } = form.draft;
  // A stored draft can name a place that has left the configuration. The refusal then names the command for the list.
  const isListed = place === "" || place === HERE || all.some(({ name }) => name === place);
  if (all.length === 0 && isListed) return null;
  return (
    <Choice
      form={form}
      name="place"
      label={create.place}
      choices={[
        ["", create.asConfigured],
        [HERE, create.here],
        ...all.map(({ name, kind, target }) => [name, create.placeOf(name, kind, target)] as const),
        ...(isListed ? [] : [[place, place] as const]),
      ]}
    />
  );
}

/** Name of the place that is the machine of the daemon. */
const HERE = "here";
