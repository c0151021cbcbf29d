/** The panels that answer why a session is as it is. */
import type { VNode } from "preact";

import type { SessionView } from "../../core/api";
import type { Host } from "../../core/login";
import { why } from "../../texts";
import { Audit } from "./audit";
import { Differences } from "./differences";
import { Doctor } from "./doctor";
import { Dropped } from "./dropped";
import { Environment } from "./environment";
import { Panel } from "./panel";
import { Plugins } from "./plugins";
import { Prerequisites } from "./prerequisites";
import { Snapshot } from "./snapshot";
import { State } from "./state";

interface Props {
  host: Host;
  id: string;
  /** The session as of its last change of state. Undefined until the first answer. */
  view: SessionView | undefined;
  readOnly: boolean;
}

/** All panels of one session. */
export function WhyPanels({ host, id, view, readOnly }: Props): VNode {
  const place = { host, id, readOnly };
  return (
    <div class="panels">
      <Panel name="state" title={why.state.title}>
        {() => (view === undefined ? <p role="status">{why.loading}</p> : <State view={view} />)}
      </Panel>
      <Panel name="prerequisites" title={why.prerequisites.title}>
        {() => <Prerequisites {...place} />}
      </Panel>
      <Panel name="environment" title={why.environment.title}>
        {() => <Environment {...place} />}
      </Panel>
      <Panel name="differences" title={why.differences.title}>
        {() => <Differences {...place} />}
      </Panel>
      <Panel name="dropped" title={why.dropped.title}>
        {() => <Dropped {...place} view={view} />}
      </Panel>
      <Panel name="snapshot" title={why.snapshot.title}>
        {() => <Snapshot {...place} />}
      </Panel>
      <Panel name="plugins" title={why.plugins.title}>
        {() => <Plugins {...place} />}
      </Panel>
      <Panel name="audit" title={why.audit.title}>
        {() => <Audit {...place} />}
      </Panel>
      <Panel name="doctor" title={why.doctor.title}>
        {() => <Doctor {...place} />}
      </Panel>
    </div>
  );
}
