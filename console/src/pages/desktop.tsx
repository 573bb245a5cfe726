import RFB from "@novnc/novnc";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Sandbox } from "../api";
import { Connection, entry } from "../stream";
import type { Entry } from "../stream";
import { Button, Control, may, Problem, why, words } from "../ui";
import { Record } from "./record";

export default function Desktop({ sandbox: s }: { sandbox: Sandbox }) {
  const [watching, setWatching] = useState(true);
  const [turn, setTurn] = useState(0);
  const [ended, setEnded] = useState("");
  const way = useMemo(
    () => entry(s.id, { kind: "desktop", mode: watching ? "view" : "control" }),
    [s.id, s.state, watching, turn],
  );
  if (s.state !== "running")
    return <Problem error={new Error(`${s.name} is ${s.state}.`)} />;
  return (
    <>
      <div class="row bar">
        <Control
          verb="exec"
          watching={watching}
          ended={ended}
          act={() => setWatching(!watching)}
        />
        <Record sandbox={s} what={{ kind: "desktop" }} />
        {!may("exec") && <span class="dim">{why("exec")}</span>}
      </div>
      <View
        entry={way}
        control={!watching}
        again={() => setTurn(turn + 1)}
        over={setEnded}
      />
    </>
  );
}

type State = "starting" | "shown" | "lost" | "ended";

/** A desktop. Without control the daemon drops keyboard, mouse and clipboard. */
export function View(props: {
  entry: Entry;
  control: boolean;
  again?: (() => void) | undefined;
  /** The page itself says who is in control. */
  quiet?: boolean;
  /** Called when the stream ends, with the reason, and with none when it goes
   * on. */
  over?: ((why: string) => void) | undefined;
}) {
  const place = useRef<HTMLDivElement>(null);
  const [state, setState] = useState<State>("starting");
  const [error, setError] = useState<unknown>();

  useEffect(
    () => props.over?.(error === undefined ? "" : words(error).text),
    [error],
  );
  useEffect(() => {
    let rfb: RFB | undefined;
    let absent = 0;
    setState("starting");
    setError(undefined);
    const connection = new Connection(props.entry, {
      connected(ws) {
        rfb?.disconnect();
        place.current?.replaceChildren();
        rfb = new RFB(place.current!, ws, { shared: true });
        rfb.viewOnly = !props.control;
        rfb.scaleViewport = true;
        rfb.background = "transparent";
        rfb.addEventListener("connect", () => {
          absent = 0;
          connection.works();
          setState("shown");
        });
      },
      lost(why) {
        if (why === "stream-port-unavailable" && ++absent > 3) {
          connection.stop();
          setState("ended");
          setError(
            new Error(
              "No VNC server listens on port 5900 of the sandbox. Use an image with a desktop; see: make desktop-image",
            ),
          );
          return;
        }
        setState("lost");
      },
      ended(e) {
        setState("ended");
        setError(e);
      },
    });
    return () => {
      connection.stop();
      rfb?.disconnect();
    };
  }, [props.entry, props.control]);

  return (
    <>
      <Problem error={error} />
      {state === "ended" && props.again && (
        <div class="row bar">
          <Button act={props.again}>Connect again</Button>
        </div>
      )}
      <p class="dim" role="status">
        {state === "starting" && "Starting the desktop…"}
        {state === "lost" && "The connection is lost. Trying again…"}
        {state === "shown" &&
          !props.quiet &&
          (props.control
            ? "You control the desktop, together with the agent."
            : "You watch. Keyboard and mouse are not sent.")}
      </p>
      <div class="vnc" ref={place} />
    </>
  );
}
