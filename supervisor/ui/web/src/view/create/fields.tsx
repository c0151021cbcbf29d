/** Fields of the form with their labels and descriptions. */
import type { ComponentChildren, VNode } from "preact";

import type { Draft } from "../../core/creation";

/** What every part of the form knows. */
export interface Form {
  draft: Draft;
  /** Changes some fields of the draft. */
  change: (fields: Partial<Draft>) => void;
  /** Beginning of the ids of this form. */
  ids: string;
  /** Field to which a refusal belongs. */
  blamed: keyof Draft | undefined;
  /** What is wrong with a field. */
  mistakes: Partial<Record<keyof Draft, string>>;
}

type TextName = { [Name in keyof Draft]: Draft[Name] extends string ? Name : never }[keyof Draft];

interface TextProps {
  form: Form;
  name: TextName;
  label: string;
  help?: string;
  placeholder?: string;
}

/** A field of one line. */
export function TextField({ form, name, label, help, placeholder }: TextProps): VNode {
  const { draft, change, ids, blamed, mistakes } = form;
  const id = `${ids}-${name}`;
  const mistake = mistakes[name];
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="text"
        dir="auto"
        autocomplete="off"
        value={draft[name]}
        placeholder={placeholder}
        aria-invalid={mistake !== undefined || blamed === name}
        aria-describedby={described(help && `${id}-help`, mistake && `${id}-mistake`)}
        onInput={(event) => change({ [name]: event.currentTarget.value })}
      />
      {help && <Help id={id}>{help}</Help>}
      {mistake && (
        <p id={`${id}-mistake`} class="mistake" role="alert">
          {mistake}
        </p>
      )}
    </div>
  );
}

interface ChoiceProps<Name extends TextName> {
  form: Form;
  name: Name;
  label: string;
  choices: readonly (readonly [Draft[Name], string])[];
}

/** A choice of one value. */
export function Choice<Name extends TextName>({ form, name, label, choices }: ChoiceProps<Name>): VNode {
  const { draft, change, ids, blamed } = form;
  const id = `${ids}-${name}`;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select
        id={id}
        value={draft[name]}
        aria-invalid={blamed === name}
        onChange={(event) => change({ [name]: event.currentTarget.value })}
      >
        {choices.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </div>
  );
}

/** A description of a field. */
export function Help({ id, children }: { id: string; children: ComponentChildren }): VNode {
  return (
    <p id={`${id}-help`} class="help">
      {children}
    </p>
  );
}

/** Returns the value of `aria-describedby` for the ids that are there. */
export function described(...ids: (string | undefined | "")[]): string | undefined {
  return ids.filter(Boolean).join(" ") || undefined;
}
