// Writes src/schema.d.ts, the types of the HTTP API, from its OpenAPI document.
import { readFileSync, writeFileSync } from "node:fs";
import openapi, { astToString } from "openapi-typescript";

const document = new URL("../../docs/openapi.json", import.meta.url);
const ast = await openapi(JSON.parse(readFileSync(document, "utf8")));
writeFileSync(
  new URL("../src/schema.d.ts", import.meta.url),
  "// Written by `npm run generate` from docs/openapi.json.\n" +
    astToString(ast),
);
