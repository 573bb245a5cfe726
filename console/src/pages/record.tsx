import { call, get } from "../api";
import type { Sandbox, Schemas } from "../api";
import { useLoad } from "../live";
import { Button, say } from "../ui";

/** What is recorded: a desktop, or a terminal, without a process the shared
 * shell. */
type What = Pick<Schemas["NewRecording"], "kind" | "process">;

/** Starts and stops a recording. What does not run is started. */
export function Record(props: { sandbox: Sandbox; what: What }) {
  const s = props.sandbox;
  const { kind = "terminal", process } = props.what;
  const list = useLoad(
    () =>
      get<{ recordings: Schemas["Recording"][] }>("v1/recordings", {
        sandbox: s.id,
      }),
    [s.id],
    /^recording\.(start|stop|remove|available|failed)/,
  );
  const running = (list.data?.recordings ?? []).find(
    (r) =>
      r.state === "recording" &&
      r.kind === kind &&
      (kind === "desktop" || r.process === process),
  );
  if (running)
    return (
      <Button
        verb="exec"
        act={async () => {
          await call("POST", `v1/recordings/${running.id}/stop`);
          list.reload();
          say(`The recording of ${s.name} is stored; see the page Recordings`);
        }}
      >
        <i class="rec" aria-hidden="true" />
        Stop recording
      </Button>
    );
  return (
    <Button
      verb="exec"
      act={async () => {
        await call("POST", `v1/sandboxes/${s.id}/recordings`, {
          json: props.what,
        });
        list.reload();
        say(`The ${kind} of ${s.name} is recorded`);
      }}
    >
      Record
    </Button>
  );
}
