/** The list of keys. */
import { signal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { texts } from "../texts";

/** Whether the list is shown. */
export const keyListOpen = signal(false);

export function KeyList(): VNode {
  const dialog = useRef<HTMLDialogElement>(null);
  const isOpen = keyListOpen.value;
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  return (
    <dialog ref={dialog} class="keylist" aria-labelledby="keys-title" onClose={() => (keyListOpen.value = false)}>
      <h2 id="keys-title">{texts.keys.title}</h2>
      <dl>
        {texts.keys.list.map(([key, meaning]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <p class="actions">
        <button type="button" onClick={() => (keyListOpen.value = false)}>
          {texts.keys.close}
        </button>
      </p>
    </dialog>
  );
}
