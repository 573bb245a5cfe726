// Generates src/models.ts from the OpenAPI document. With an argument, it
// writes a copy there.
import { readFileSync, writeFileSync } from 'node:fs'
import openapiTS, { astToString } from 'openapi-typescript'

const here = new URL('../', import.meta.url)
const document = JSON.parse(readFileSync(new URL('../../docs/openapi.json', here), 'utf8'))
const schemas = document.components.schemas
for (const schema of Object.values(schemas)) delete schema.properties?.$schema
const text = astToString(await openapiTS({ ...document, paths: {}, components: { schemas } }))
const names = Object.keys(schemas).map((name) => `export type ${name} = components['schemas']['${name}']\n`)
const head = '// Generated from docs/openapi.json by openapi-typescript. To write it anew: make js-generate\n\n'
const body = text.replace(/export (type paths|type webhooks|type operations|type \$defs) = Record<string, never>;\n/g, '')
writeFileSync(process.argv[2] ?? new URL('src/models.ts', here), `${head}${body}\n${names.join('')}`)
