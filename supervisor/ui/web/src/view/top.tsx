/** The line at the top: the filter, a new session, notifications and the keys. */
import type { Signal } from "@preact/signals";
import type { VNode } from "preact";

import { notices, toggle } from "../core/notices";
import { fragment } from "../core/route";
import type { Filter } from "../core/store";
import { texts } from "../texts";
import { keyListOpen } from "./keys";

export function Top({ filter, readOnly }: { filter: Signal<Filter>; readOnly: boolean }): VNode {
  const { text, label } = filter.value;
  return (
    <header class="top">
      <a class="product" href={fragment({ view: "list" })}>
        {texts.product}
      </a>
      {readOnly && <span class="badge">{texts.readOnly}</span>}
      <search class="filter">
        <input
          id="filter"
          type="search"
          placeholder={texts.filter}
          aria-label={texts.filter}
          value={text}
          onInput={(event) => (filter.value = { ...filter.value, text: event.currentTarget.value })}
        />
        <input
          type="search"
          class="label"
          placeholder={texts.labels}
          aria-label={texts.labels}
          title={texts.labelsHint}
          value={label}
          onInput={(event) => (filter.value = { ...filter.value, label: event.currentTarget.value })}
        />
      </search>
      <span class="spring" />
      {!readOnly && (
        <a class="button primary" href={fragment({ view: "create", host: undefined })}>
          {texts.create}
        </a>
      )}
      {notices.value !== "unsupported" && (
        <button
          type="button"
          class="notices"
          aria-pressed={notices.value === "on"}
          title={texts.notices.label}
          disabled={notices.value === "denied"}
          onClick={() => void toggle()}
        >
          {texts.notices[notices.value]}
        </button>
      )}
      <button type="button" class="keys" onClick={() => (keyListOpen.value = true)} aria-keyshortcuts="?">
        {texts.keys.button}
      </button>
    </header>
  );
}
