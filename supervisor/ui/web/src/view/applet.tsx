/**
 * The applet beside the conversation. A person opens it by a click; the page loads none by itself.
 *
 * When the session becomes idle, the applet's state is recorded in the session's context. So the note after a resume
 * names what the person looked at. An applet reports its state by a message (`told`); else its address stands for it.
 */
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { call, session as path, type SessionBrief, type SessionView } from "../core/api";
import { appletOf, isSame, told, type Applet } from "../core/applet";
import type { Host } from "../core/login";
import { safe, visible } from "../core/text";
import { texts } from "../texts";

export interface Shown {
  shown: Applet | undefined;
  show: (applet: Applet) => void;
  close: () => void;
  /** Takes the applet's state as it reported it. */
  changed: (applet: Applet) => void;
  /** Whether the state was recorded since the applet was opened. */
  captured: boolean;
}

/** Keeps the applet that is shown, and records it when the session becomes idle. */
export function useApplet(host: Host, id: string, session: SessionView | undefined, readOnly: boolean): Shown {
  const [shown, setShown] = useState<Applet>();
  const [captured, setCaptured] = useState(false);
  const context = session?.status.context;
  const latest = useRef({ shown, context });
  latest.current = { shown, context };
  useEffect(() => {
    if (readOnly) return;
    // The stream names each time at which the session is idle, also after a turn of milliseconds.
    return host.sessions.listen((event) => {
      if (event.kind !== "session.state" || event.session !== id) return;
      if ((event.data as SessionBrief).phase === "idle") void capture();
    });
  }, [host, id, readOnly]);
  const capture = async () => {
    const { shown: now, context: recorded } = latest.current;
    if (now === undefined) return;
    if (!isSame(now, appletOf(recorded))) {
      const change = { mode: "replace", sets: { applet: [now.slug, ...now.parameters] }, applet_url: now.url };
      try {
        await call(host.base, "patch", path(id, "/context"), change);
      } catch {
        // The next time at which the session is idle tries again.
        return setCaptured(false);
      }
    }
    setCaptured(true);
  };
  const show = (applet: Applet) => {
    setCaptured(false);
    setShown(applet);
  };
  return { shown, show, close: () => setShown(undefined), changed: setShown, captured };
}

/** The applet in a frame of its own, which reaches neither this page nor its cookie. */
export function AppletPane({ applet }: { applet: Shown }): VNode | null {
  const frame = useRef<HTMLIFrameElement>(null);
  const { shown, changed } = applet;
  // The address with which the frame was opened. A reported one must not load the applet again.
  const [opened] = useState(() => safe(shown?.url ?? ""));
  useEffect(() => {
    const heard = (event: MessageEvent) => {
      if (shown === undefined || opened === undefined || event.source !== frame.current?.contentWindow) return;
      const { origin } = new URL(opened);
      const next = event.origin === origin ? told(shown, event.data, origin) : undefined;
      if (next !== undefined && !isSame(next, shown)) changed(next);
    };
    addEventListener("message", heard);
    return () => removeEventListener("message", heard);
  }, [shown]);
  if (shown === undefined || opened === undefined) return null;
  return (
    <aside class="applet-pane" aria-label={texts.footer.applet}>
      <p class="bar">
        <bdi>{visible([shown.slug, ...shown.parameters].join(" "))}</bdi>
        {applet.captured && <small role="status">{texts.footer.captured}</small>}
        <button type="button" onClick={applet.close}>
          {texts.footer.hideApplet}
        </button>
      </p>
      <iframe
        ref={frame}
        src={opened}
        title={visible(shown.slug)}
        sandbox="allow-scripts allow-forms allow-same-origin"
        referrerpolicy="no-referrer"
      />
    </aside>
  );
}
