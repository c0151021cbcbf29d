/** The files that accompany the first prompt. */
import type { VNode } from "preact";
import { useRef, useState } from "preact/hooks";

import { attachment, type Attachment } from "../../core/attachments";
import { words } from "../../core/api";
import { visible } from "../../core/text";
import { create } from "../../texts";
import { Help } from "./fields";

/** The chosen files with their contents. */
export interface ChosenFiles {
  files: readonly Attachment[];
  /** Whether a file is being read. */
  reading: boolean;
  /** Why the last file was not taken. */
  refused: string | undefined;
  add: (files: Iterable<File>) => void;
  leaveOut: (file: Attachment) => void;
  clear: () => void;
}

/** Returns the chosen files. They are read when they are chosen. */
export function useFiles(): ChosenFiles {
  const [files, setFiles] = useState<readonly Attachment[]>([]);
  const [refused, setRefused] = useState<string>();
  const [reading, setReading] = useState(0);
  const add = async (chosen: Iterable<File>) => {
    setRefused(undefined);
    setReading((number) => number + 1);
    for (const file of chosen) {
      try {
        const read = await attachment(file);
        setFiles((before) => [...before, read]);
      } catch (error) {
        setRefused(words(error));
      }
    }
    setReading((number) => number - 1);
  };
  return {
    files,
    reading: reading > 0,
    refused,
    add: (chosen) => void add(chosen),
    leaveOut: (file) => setFiles((before) => before.filter((other) => other !== file)),
    clear: () => {
      setFiles([]);
      setRefused(undefined);
    },
  };
}

/** The field that chooses files, with the chosen ones. */
export function Files({ ids, chosen }: { ids: string; chosen: ChosenFiles }): VNode {
  const { files, refused, add, leaveOut } = chosen;
  const input = useRef<HTMLInputElement>(null);
  const id = `${ids}-files`;
  const take = (field: HTMLInputElement) => {
    add([...(field.files ?? [])]);
    // The same file can be chosen again after it was left out.
    field.value = "";
  };
  return (
    <div class="field">
      <label for={id}>{create.files}</label>
      <input
        id={id}
        ref={input}
        type="file"
        multiple
        aria-describedby={`${id}-help`}
        onChange={(event) => take(event.currentTarget)}
      />
      <Help id={id}>{create.filesHelp}</Help>
      {refused !== undefined && (
        <p class="mistake" role="alert">
          {visible(refused)}
        </p>
      )}
      {files.length > 0 && (
        <ul class="chosen-files">
          {files.map((file, index) => (
            <li key={`${file.name} ${index}`}>
              <span dir="auto">{visible(file.name)}</span>
              <button
                type="button"
                aria-label={visible(create.withoutFile(file.name))}
                onClick={() => {
                  leaveOut(file);
                  input.current?.focus();
                }}
              >
                {create.remove}
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
