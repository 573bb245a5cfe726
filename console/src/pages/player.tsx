import { create } from "asciinema-player";
import "asciinema-player/dist/bundle/asciinema-player.css";
import { useEffect, useRef, useState } from "preact/hooks";
import { request } from "../api";
import { Problem } from "../ui";

/** Plays a recording of a terminal. */
export default function Player({ id }: { id: string }) {
  const place = useRef<HTMLDivElement>(null);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    let over = false;
    let dispose = () => {};
    const play = async () => {
      const r = await request("GET", `v1/recordings/${id}/content`);
      const data = await r.text();
      if (over) return;
      const player = create({ data }, place.current!, {
        fit: "both",
        idleTimeLimit: 2,
        controls: true,
        autoPlay: true,
        terminalFontFamily:
          'ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", Menlo, monospace',
      });
      dispose = () => player.dispose();
    };
    play().catch(setError);
    return () => {
      over = true;
      dispose();
    };
  }, [id]);
  return (
    <>
      <Problem error={error} />
      <div class="player" ref={place} />
    </>
  );
}
