/** A text field that proposes values, by the pattern "editable combobox with list" of the ARIA practices. */
import type { VNode } from "preact";
import { useEffect, useId, useState } from "preact/hooks";

import { visible } from "../../core/text";

/** A value that a field proposes. */
export interface Proposal {
  value: string;
  /** Name for people, if it says more than the value. */
  name?: string;
}

interface Props {
  label: string;
  value: string;
  change: (value: string) => void;
  proposals: readonly Proposal[];
  placeholder?: string;
  invalid?: boolean;
  /** Ids of the texts that describe the field. */
  describedBy?: string;
  /** Id of the field. */
  id: string;
}

/** A field of one line with a list of proposals. Arrow keys choose one, Enter takes it, and Escape closes the list. */
export function Combobox({ label, value, change, proposals, placeholder, invalid, describedBy, id }: Props): VNode {
  const [open, setOpen] = useState(false);
  const [active, setActive] = useState(-1);
  const list = useId();
  const shown = open && proposals.length > 0;
  useEffect(() => {
    if (active >= 0) document.getElementById(`${list}-${active}`)?.scrollIntoView({ block: "nearest" });
  }, [active, list]);
  const close = () => {
    setOpen(false);
    setActive(-1);
  };
  const take = (proposal: Proposal) => {
    change(proposal.value);
    close();
  };
  const move = (step: 1 | -1) => {
    const from = shown ? active : step === 1 ? -1 : proposals.length;
    setOpen(true);
    setActive((from + step + proposals.length) % Math.max(1, proposals.length));
  };
  const key = (event: KeyboardEvent) => {
    const chosen = shown ? proposals[active] : undefined;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") move(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter" && chosen !== undefined && !event.ctrlKey && !event.metaKey) take(chosen);
    else if (event.key === "Escape" && shown) {
      // The first Escape closes the list, and not the form.
      event.stopPropagation();
      close();
    } else return;
    event.preventDefault();
  };
  return (
    <div class="field combobox">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="text"
        role="combobox"
        dir="ltr"
        autocomplete="off"
        autocapitalize="off"
        spellcheck={false}
        aria-autocomplete="list"
        aria-expanded={shown}
        aria-controls={shown ? list : undefined}
        aria-activedescendant={shown && active >= 0 ? `${list}-${active}` : undefined}
        aria-invalid={invalid}
        aria-describedby={describedBy}
        placeholder={placeholder}
        value={value}
        onInput={(event) => {
          change(event.currentTarget.value);
          setOpen(true);
          setActive(-1);
        }}
        onClick={() => setOpen(true)}
        onKeyDown={key}
        onBlur={close}
      />
      {shown && (
        <ul id={list} role="listbox" aria-label={label}>
          {proposals.map((proposal, index) => (
            <li
              key={proposal.value}
              id={`${list}-${index}`}
              role="option"
              aria-selected={index === active}
              onMouseDown={(event) => event.preventDefault()}
              onClick={() => take(proposal)}
            >
              <span dir="ltr">{visible(proposal.value)}</span>
              {proposal.name && proposal.name !== proposal.value && <span class="aside">{visible(proposal.name)}</span>}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** Returns the proposals that have the typed text in their value or name. A whole value proposes the others too. */
export function fitting(all: readonly Proposal[], typed: string): Proposal[] {
  const text = typed.toLowerCase();
  if (all.some(({ value }) => value === typed)) return [...all];
  return all.filter(({ value, name }) => `${value}\n${name ?? ""}`.toLowerCase().includes(text));
}
