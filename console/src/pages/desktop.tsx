import RFB from "@novnc/novnc";
import { useEffect, useRef, useState } from "preact/hooks";
import { socket } from "../api";
import type { Sandbox } from "../api";
import { Button } from "../ui";

/** The port of the VNC server inside. */
const vnc = 5900;

export default function Desktop({ sandbox: s }: { sandbox: Sandbox }) {
  const place = useRef<HTMLDivElement>(null);
  const rfb = useRef<RFB>(undefined);
  const [watching, setWatching] = useState(true);
  const [state, setState] = useState<"starting" | "shown" | "ended">(
    "starting",
  );
  const [turn, setTurn] = useState(0);

  useEffect(() => {
    let over = false;
    setState("starting");
    const show = () => {
      const view = new RFB(
        place.current!,
        socket(`v1/sandboxes/${s.id}/ports/${vnc}`),
        { shared: true },
      );
      view.viewOnly = watching;
      view.scaleViewport = true;
      view.background = "transparent";
      view.addEventListener("connect", () => setState("shown"));
      view.addEventListener("disconnect", () => {
        if (!over) setState("ended");
      });
      rfb.current = view;
    };
    show();
    return () => {
      over = true;
      rfb.current?.disconnect();
    };
  }, [s.id, s.state, turn]);

  return (
    <>
      <div class="row" style="margin-bottom:8px">
        <Button
          act={() => {
            if (rfb.current) rfb.current.viewOnly = !watching;
            setWatching(!watching);
          }}
        >
          {watching ? "Take control" : "Only watch"}
        </Button>
        <span class="dim" role="status">
          {state === "starting" && "Connecting to the desktop…"}
          {state === "shown" &&
            (watching
              ? "You watch. Keyboard and mouse are not sent."
              : "You control the desktop, together with the agent.")}
          {state === "ended" &&
            `The desktop is not connected. A VNC server must listen on port ${vnc} of the sandbox.`}
        </span>
        {state === "ended" && (
          <Button act={() => setTurn(turn + 1)}>Connect again</Button>
        )}
      </div>
      <div class="vnc" ref={place} />
    </>
  );
}
