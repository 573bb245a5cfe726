/** Returns a tar archive with one small file. */
export function tarOf(name: string, text: string): Uint8Array<ArrayBuffer> {
  const body = new TextEncoder().encode(text);
  const blocks = Math.ceil(body.length / 512);
  const out = new Uint8Array(512 * (1 + blocks + 2));
  const put = (at: number, s: string) =>
    out.set(new TextEncoder().encode(s), at);
  put(0, name);
  put(100, "0000644\0");
  put(108, "0000000\0");
  put(116, "0000000\0");
  put(124, body.length.toString(8).padStart(11, "0") + "\0");
  put(136, "00000000000\0");
  put(148, "        ");
  put(156, "0");
  put(257, "ustar\x0000");
  const sum = out.subarray(0, 512).reduce((n, b) => n + b, 0);
  put(148, sum.toString(8).padStart(6, "0") + "\0 ");
  out.set(body, 512);
  return out;
}
