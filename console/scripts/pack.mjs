// Compresses the build, replaces its files by the compressed ones, and writes
// down from which sources it was made. The same sources always give the same
// bytes.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const home = fileURLToPath(new URL("..", import.meta.url));
const dist = join(home, "../internal/server/console/dist");

const files = (dir) =>
  readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((e) => e.isFile())
    .map((e) => join(e.parentPath, e.name))
    .sort();
const hash = (text) => createHash("sha256").update(text).digest("hex");

// A test of the Go package compares these with the files of the checkout.
const sources = {};
for (const f of [
  ...files(join(home, "src")),
  ...files(join(home, "public")),
  ...["index.html", "package-lock.json", "vite.config.ts"].map((n) =>
    join(home, n),
  ),
])
  sources[relative(home, f)] = hash(readFileSync(f));

let total = 0;
for (const file of files(dist)) {
  const packed = gzipSync(readFileSync(file), { level: 9 });
  packed[9] = 255; // the system, which zlib writes into the header
  writeFileSync(file + ".gz", packed);
  rmSync(file);
  total += packed.length;
}
writeFileSync(
  join(dist, "sources.json"),
  JSON.stringify(sources, null, 1) + "\n",
);
console.log(`${total} bytes compressed`);
const limit = 1.5 * 1024 * 1024;
if (total > limit) throw new Error(`the console has more than ${limit} bytes`);
