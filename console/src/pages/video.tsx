import { useEffect, useState } from "preact/hooks";
import { request } from "../api";
import { Problem } from "../ui";

/** Plays a recording of a desktop. The page has read it with its credentials. */
export default function Video({ id, label }: { id: string; label: string }) {
  const [source, setSource] = useState<string>();
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    let over = false;
    let url: string | undefined;
    const load = async () => {
      const answer = await request("GET", `v1/recordings/${id}/content`);
      const data = await answer.arrayBuffer();
      if (over) return;
      // It comes from a sandbox, and is a video whatever it says.
      url = URL.createObjectURL(new Blob([data], { type: "video/mp4" }));
      setSource(url);
    };
    load().catch(setError);
    return () => {
      over = true;
      if (url) URL.revokeObjectURL(url);
    };
  }, [id]);
  return (
    <>
      <Problem error={error} />
      {!source && !error && (
        <p class="dim" role="status">
          Loading the recording…
        </p>
      )}
      {source && (
        <video
          class="film"
          src={source}
          aria-label={label}
          controls
          autoplay
          muted
          playsInline
          onError={() =>
            setError(
              new Error(
                "The browser cannot play it. Download it and try another player.",
              ),
            )
          }
        />
      )}
    </>
  );
}
