/** Keys of the page. A key counts only if no text is being written and no dialog is open. */

type Action = () => void;

const WRITES = "input, textarea, select, [contenteditable]";
/** Keys that elements use themselves: a key for the page must not take them away. */
const OWN = new Set(["Enter", " "]);

class Keys {
  private bound = new Map<string, Action[]>();

  constructor() {
    if (typeof document !== "undefined") document.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** Binds a key. The action that was bound last gets it. Returns the function that unbinds it. */
  bind(key: string, action: Action): () => void {
    const actions = this.bound.get(key) ?? [];
    this.bound.set(key, actions);
    actions.push(action);
    return () => {
      actions.splice(actions.indexOf(action), 1);
    };
  }

  private pressed(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.defaultPrevented) return;
    const target = event.target as Element;
    if (event.key === "Escape" && target.matches(WRITES)) {
      (target as HTMLElement).blur();
      return;
    }
    if (target.matches(WRITES) || OWN.has(event.key) || document.querySelector("dialog[open]") !== null) return;
    const action = this.bound.get(event.key)?.at(-1);
    if (action === undefined) return;
    event.preventDefault();
    action();
  }
}

export const keys = new Keys();
