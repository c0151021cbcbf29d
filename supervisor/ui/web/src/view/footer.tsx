/** The context under the input: files, applet, endpoints and ports as links. Without context there is no footer. */
import type { VNode } from "preact";

import type { Schemas, SessionView } from "../core/api";
import type { Applet } from "../core/applet";
import { appletOf } from "../core/applet";
import type { Host } from "../core/login";
import { editorAddress, safe, visible } from "../core/text";
import { texts } from "../texts";
import { Link } from "./text";

interface Props {
  host: Host;
  session: SessionView | undefined;
  /** Shows an applet beside the conversation. */
  show: (applet: Applet) => void;
}

export function Footer({ host, session, show }: Props): VNode | null {
  const context = session?.status.context;
  const sets = Object.entries(context?.sets ?? {}).filter(([name, items]) => name !== "applet" && items.length > 0);
  const applet = appletOf(context);
  if (session === undefined || (sets.length === 0 && applet === undefined)) return null;
  return (
    <footer class="context" aria-label={texts.footer.label}>
      <dl>
        {applet !== undefined && (
          <div class="set applet">
            <dt>{texts.footer.applet}</dt>
            <dd>
              <Link to={applet.url}>{visible([applet.slug, ...applet.parameters].join(" "))}</Link>
              {safe(applet.url) !== undefined && (
                <button type="button" onClick={() => show(applet)}>
                  {texts.footer.beside}
                </button>
              )}
            </dd>
          </div>
        )}
        {sets.map(([name, items]) => (
          <div key={name} class={`set ${name}`}>
            <dt>{Object.hasOwn(texts.footer, name) ? texts.footer[name] : visible(name)}</dt>
            {items.map((item) => (
              <dd key={item.value}>
                <Entry set={name} item={item} editor={host.editor} directory={session.spec.directory ?? "/"} />
              </dd>
            ))}
          </div>
        ))}
      </dl>
    </footer>
  );
}

interface EntryProps {
  set: string;
  item: Schemas["ContextItem"];
  editor: string | null;
  directory: string;
}

function Entry({ set, item, editor, directory }: EntryProps): VNode {
  const { value, missing } = item;
  if (set === "files") {
    const address = missing
      ? undefined
      : editorAddress(editor, value.startsWith("/") ? value : `${directory}/${value}`);
    const short = value.startsWith(`${directory}/`) ? value.slice(directory.length + 1) : value;
    if (missing)
      return (
        <>
          <s>
            <bdi>{visible(short)}</bdi>
          </s>{" "}
          <small>{texts.footer.missing}</small>
        </>
      );
    if (address === undefined)
      return (
        <code>
          <bdi>{visible(short)}</bdi>
        </code>
      );
    return (
      <a href={address} rel="noopener noreferrer" title={visible(value)}>
        <bdi>{visible(short)}</bdi>
      </a>
    );
  }
  if (set === "ports" && /^\d{1,5}$/.test(value)) return <Link to={`http://localhost:${value}/`}>{value}</Link>;
  return <Link to={value}>{visible(value)}</Link>;
}
