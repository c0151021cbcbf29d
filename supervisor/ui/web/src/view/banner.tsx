/** Why the page shows nothing, or nothing new: it is signed out, or its server does not answer. */
import type { VNode } from "preact";

import { login } from "../core/login";
import { visible } from "../core/text";
import { texts } from "../texts";

export function Banner({ again }: { again: () => void }): VNode | null {
  const state = login.value;
  if (state.state !== "out" && state.state !== "unreachable") return null;
  const isOut = state.state === "out";
  return (
    <div class="banner" role="alert" data-login={state.state}>
      <p>
        <b>{isOut ? texts.login.out : texts.login.unreachable(visible(state.why))}</b>
      </p>
      {isOut && (
        <p>
          <bdi>{visible(state.why)}</bdi>
        </p>
      )}
      <p>{isOut ? texts.login.outHint : texts.login.unreachableHint}</p>
      <button type="button" onClick={again}>
        {texts.login.again}
      </button>
    </div>
  );
}
